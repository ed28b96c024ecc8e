"use strict";
// The page's only script: the theme switch, the plot's filters and tooltip, where the reader is. Everything it shows is
// set as text; nothing in the page's data becomes markup.
(function () {
  const root = document.documentElement;

  function theme() {
    const button = document.getElementById("theme");
    const prefers = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme || (prefers.matches ? "dark" : "light")) === "dark";
    const say = () => {
      button.textContent = isDark() ? "Light theme" : "Dark theme";
    };
    try {
      const kept = localStorage.getItem("meshplan-theme");
      if (kept === "dark" || kept === "light") root.dataset.theme = kept;
    } catch (refused) {
      // A page opened from a file may have no storage: the theme then lasts as long as the page.
    }
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try {
        localStorage.setItem("meshplan-theme", root.dataset.theme);
      } catch (refused) {
        // As above.
      }
      say();
    });
    prefers.addEventListener("change", say);
    say();
  }

  function plot(figure) {
    const { points, filters } = JSON.parse(document.getElementById(figure.dataset.plot).textContent);
    const area = figure.querySelector(".area");
    const tip = figure.querySelector(".tip");
    const cursor = figure.querySelector(".cursor");
    const dots = figure.querySelector(".dots");
    const marks = [...area.querySelectorAll(".mark")];
    const firstMark = points.length - marks.length;
    const select = figure.querySelector("select.colour");
    const boxes = [...figure.querySelectorAll(".controls input")];
    const menus = [...figure.querySelectorAll("select[data-filter]")];
    let shown = [];
    let current = -1;

    function draw() {
      const off = filters.map(() => new Set());
      const hidden = new Set();
      for (const box of boxes) {
        if (box.checked) continue;
        if (box.dataset.state) hidden.add(box.dataset.state);
        else off[box.dataset.filter].add(Number(box.value));
      }
      for (const menu of menus) {
        const values = filters[menu.dataset.filter][1];
        if (menu.value) values.forEach((value) => value === Number(menu.value) || off[menu.dataset.filter].add(value));
      }
      const axis = Number(select.value);
      const values = filters[axis][1];
      const paths = new Map();
      shown = [];
      points.forEach(([x, y, state, , choices], index) => {
        const visible = !hidden.has(state) && choices.every((value, place) => !off[place].has(value));
        if (visible) shown.push(index);
        if (index >= firstMark) marks[index - firstMark].hidden = !visible;
        else if (visible) {
          const kind = state + " hue" + (values.indexOf(choices[axis]) % 8);
          if (!paths.has(kind)) paths.set(kind, []);
          paths.get(kind).push("M" + (x * 1000).toFixed(1) + " " + ((1 - y) * 1000).toFixed(1) + "h0");
        }
      });
      dots.replaceChildren(
        ...[...paths].map(([kind, parts]) => {
          const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
          path.setAttribute("class", kind);
          path.setAttribute("d", parts.join(""));
          return path;
        }),
      );
      hues(axis);
      figure.querySelector(".count").textContent =
        shown.length.toLocaleString("en") + " of " + points.length.toLocaleString("en") + " drawn candidates shown";
      leave();
    }

    function hues(axis) {
      const key = figure.querySelector(".hues");
      const name = document.createElement("span");
      name.textContent = filters[axis][0];
      const parts = filters[axis][1].flatMap((value, place) => {
        const dot = document.createElement("i");
        dot.className = "dot hue" + (place % 8);
        return [dot, String(value)];
      });
      key.replaceChildren(name, ...parts);
    }

    function tell(index) {
      if (index === current) return;
      current = index;
      const [x, y, , name, , facts] = points[index];
      tip.querySelector("b").textContent = name;
      tip.querySelector("ul").replaceChildren(
        ...facts.map((fact) => {
          const item = document.createElement("li");
          item.textContent = fact;
          return item;
        }),
      );
      cursor.hidden = false;
      cursor.style.left = x * 100 + "%";
      cursor.style.bottom = y * 100 + "%";
      tip.classList.add("on");
      place(x, y);
    }

    function place(x, y) {
      const at = area.getBoundingClientRect();
      const whole = figure.getBoundingClientRect();
      const left = at.left - whole.left + x * at.width;
      const top = at.top - whole.top + (1 - y) * at.height;
      const wide = tip.offsetWidth;
      const high = tip.offsetHeight;
      tip.style.left = Math.max(0, Math.min(left + 16, whole.width - wide)) + "px";
      tip.style.top = (y > 0.5 ? top + 18 : top - high - 18) + "px";
    }

    function leave() {
      current = -1;
      cursor.hidden = true;
      tip.classList.remove("on");
    }

    function nearest(event) {
      const at = area.getBoundingClientRect();
      let best = -1;
      let least = 28 * 28;
      for (const index of shown) {
        const dx = points[index][0] * at.width - (event.clientX - at.left);
        const dy = (1 - points[index][1]) * at.height - (event.clientY - at.top);
        const away = dx * dx + dy * dy - (index >= firstMark ? 40 : 0);
        if (away < least) [best, least] = [index, away];
      }
      return best;
    }

    // What the keyboard walks through: what was tried and the fastest of those that fit so far, by memory.
    function stops() {
      const found = [];
      let fastest = -1;
      for (const index of [...shown].sort((a, b) => points[a][0] - points[b][0])) {
        const leads = points[index][2] === "fits" && points[index][1] > fastest;
        if (leads) fastest = points[index][1];
        if (leads || index >= firstMark) found.push(index);
      }
      return found;
    }

    area.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch") return;
      const index = nearest(event);
      if (index >= 0) tell(index);
      else leave();
    });
    area.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") leave();
    });
    area.addEventListener("click", (event) => {
      const index = nearest(event);
      if (index >= 0) tell(index);
      else leave();
    });
    area.addEventListener("keydown", (event) => {
      const all = stops();
      if (event.key === "Escape") leave();
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!step || !all.length) return;
      event.preventDefault();
      const from = all.indexOf(current);
      const start = all.findIndex((index) => points[index][2] === "chosen");
      tell(all[from < 0 ? Math.max(start, 0) : (from + step + all.length) % all.length]);
    });
    area.addEventListener("blur", leave);
    for (const mark of marks) mark.removeAttribute("title");
    for (const control of [...boxes, ...menus, select]) control.addEventListener("change", draw);
    figure.querySelector(".controls").hidden = false;
    draw();
  }

  function whereabouts() {
    const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    const seen = new IntersectionObserver(
      (entries) => {
        const entry = entries.find((one) => one.isIntersecting);
        if (!entry) return;
        const strip = document.querySelector("nav");
        strip.scrollLeft = links.get(entry.target.id).offsetLeft - strip.clientWidth / 3; // a strip on a phone
        for (const [id, link] of links) {
          if (id === entry.target.id) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
        }
      },
      { rootMargin: "-10% 0px -75% 0px" },
    );
    for (const id of links.keys()) seen.observe(document.getElementById(id));
  }

  theme();
  document.querySelectorAll("figure.scatter").forEach(plot);
  whereabouts();
})();
