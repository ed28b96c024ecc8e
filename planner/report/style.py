"""The look of the HTML report: one style sheet, light and dark by the reader's own setting, no fonts to fetch."""

STYLE = """
:root{--page:#fbfbfa;--card:#fff;--ink:#1c1e21;--dim:#62676e;--line:#e2e3e1;--accent:#0b6e4f;--accent-soft:#e3f3ec;
--code:#f2f3f1;--limit:#b3261e;
--t0:#3565c0;--t1:#7aa2e3;--t2:#6c4ab6;--t3:#d9822b;--t4:#c3a15a;--t5:#9aa0a6;--t6:#1f9e8f;--t7:#5f6368;--t8:#b0506e;
--t9:#0b6e4f;--t10:#8cc9ae;--t11:#b9bec4}
@media (prefers-color-scheme:dark){:root{--page:#141517;--card:#1c1e21;--ink:#e6e7e8;--dim:#9ba1a8;--line:#303338;
--accent:#5fd0a4;--accent-soft:#16352a;--code:#25282c;--limit:#ff8a80;
--t0:#6f9bf0;--t1:#3e5f9c;--t2:#a88bf0;--t3:#f0a252;--t4:#a8894a;--t5:#7d848b;--t6:#4cc5b6;--t7:#a3a8ad;--t8:#e07f9d;
--t9:#5fd0a4;--t10:#2f7a5c;--t11:#5d646b}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:66rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:0 0 .6rem}
p{margin:.4rem 0;max-width:72ch;overflow-wrap:anywhere}
.subtitle{color:var(--dim);margin:.4rem 0 1.2rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:0}
.facts div{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.7rem .9rem}
dt{color:var(--dim);font-size:.85rem}
dd{margin:0;font-size:1rem;font-weight:600;font-variant-numeric:tabular-nums}
dd.origin{font-size:.8rem;font-weight:400;color:var(--accent)}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1rem;margin:1.2rem 0;font-size:.85rem}
a{color:var(--accent)}
section{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:1rem 1.1rem;margin:0 0 1rem;
scroll-margin-top:1rem}
pre{background:var(--code);border-radius:.4rem;padding:.6rem .8rem;margin:.5rem 0 .2rem;overflow-x:auto}
code,.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.85em}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:500;white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.words{min-width:6rem;overflow-wrap:break-word}
td.code{white-space:nowrap}
.wide td,.wide th{white-space:nowrap}
tr.chosen td{background:var(--accent-soft);font-weight:600}
figure{margin:.4rem 0 .8rem}
.plot{position:relative}
.plot.limited{padding-bottom:2.9rem}
.bar-label{font-size:.88rem;margin-top:.5rem;font-variant-numeric:tabular-nums;color:var(--dim)}
.bar-label b{color:var(--ink)}
.bar{display:flex;height:1.5rem;background:var(--code);border-radius:.25rem;overflow:hidden}
.bar span{min-width:0;box-shadow:inset -1px 0 0 var(--card)}
.markers{position:absolute;inset:0 0 1.2rem;pointer-events:none}
.marker{position:absolute;top:0;bottom:0;border-left:2px dashed var(--limit)}
.marker span{position:absolute;bottom:-1.15rem;right:0;white-space:nowrap;font-size:.78rem;color:var(--limit)}
.marker:nth-last-child(2) span{bottom:.05rem;right:.3rem}
figcaption{font-size:.82rem;margin-top:.5rem}
figcaption ul{list-style:none;margin:.15rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.15rem 1.1rem}
figcaption li{color:var(--dim);font-variant-numeric:tabular-nums}
figcaption li b{color:var(--ink);font-weight:600}
figcaption i{display:inline-block;width:.75em;height:.75em;border-radius:.15em;margin-right:.4em;vertical-align:-.05em}
@media (max-width:32rem){main{padding:1.2rem .7rem 3rem}section{padding:.8rem .8rem}table{font-size:.82rem}
th,td{padding-right:.55rem}.narrow .number{white-space:normal;min-width:4.1em}td.words{min-width:5.2rem}
td.code{white-space:pre-wrap;overflow-wrap:anywhere;min-width:7rem}.facts div{padding:.5rem .7rem}dd{font-size:.98rem}}
""" + "".join(f".tone{tone}{{background:var(--t{tone})}}" for tone in range(12))
