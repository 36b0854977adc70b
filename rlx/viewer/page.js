"use strict";
(() => {
  const TONES = ["accent", "warm", "second", "third", "fourth", "fifth"];
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  if (!$("player")) return;
  const known = new Map(data.embedded.map((episode) => [episode.number, episode]));
  const images = new Map();
  let episode = null, row = 0, timer = null, wanted = 0;

  const number = (value) => {
    if (value === null || value === undefined) return "\u2013";
    return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
  };

  const part = (value) => (value === null || Number.isInteger(value) ? number(value) : value.toFixed(2));

  const element = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const across = (at, count) => ((at / Math.max(count - 1, 1)) * 1000).toFixed(1);
  const up = (value, [low, high], height) => (height - 3 - ((value - low) / (high - low || 1)) * (height - 6)).toFixed(1);

  const points = (values, span, height) => {
    const found = [];
    values.forEach((value, at) => { if (value !== null) found.push(`${across(at, values.length)},${up(value, span, height)}`); });
    return found.join(" ");
  };

  const line = (values, span, height, tone) => {
    const moves = [];
    values.forEach((value, at) => {
      if (value === null) return;
      const isFirst = at === 0 || values[at - 1] === null;
      moves.push(`${isFirst ? "M" : "L"}${across(at, values.length)},${up(value, span, height)}${isFirst ? "h0" : ""}`);
    });
    return element("path", { d: moves.join(""), fill: "none", stroke: `var(--${tone})`, "stroke-width": 1.6, "stroke-linecap": "round", "vector-effect": "non-scaling-stroke" });
  };

  const range = (lists) => {
    let low = Infinity, high = -Infinity;
    for (const list of lists) for (const value of list) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    return low > high ? [0, 1] : [low, high];
  };

  const cursor = (height) => element("line", { y1: 0, y2: height, stroke: "var(--ink)", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke", class: "cursor" });

  function drawCurves() {
    const curve = $("curve"), count = episode.rows.length;
    const span = range([episode.returns, [0]]), zero = up(0, span, 94);
    const area = `0,${zero} ${points(episode.returns, span, 94)} 1000,${zero}`;
    curve.replaceChildren(element("polygon", { points: area, fill: "var(--soft)" }));
    for (let at = 0, marks = 0; at < count && marks < 600; at++) {
      if (!episode.rewards[at]) continue;
      const x = across(at, count);
      curve.append(element("line", { x1: x, x2: x, y1: 96, y2: 100, stroke: "var(--warm)", "stroke-width": 2, "vector-effect": "non-scaling-stroke" }));
      marks++;
    }
    curve.append(line(episode.returns, span, 94, "accent"), cursor(100));
    if (!episode.lines) return;
    const plot = $("plot"), legend = $("legend");
    plot.replaceChildren();
    legend.replaceChildren();
    const spread = range(episode.lines.map((one) => one.values));
    episode.lines.forEach((one, at) => {
      plot.append(line(one.values, spread, 300, TONES[at]));
      const entry = document.createElement("span"), patch = document.createElement("i"), value = document.createElement("span");
      patch.className = `tone-${TONES[at]}`;
      entry.append(patch, `${one.name} `, value);
      legend.append(entry);
    });
    if (episode.more) legend.append(`and ${number(episode.more)} more`);
    plot.append(cursor(300));
  }

  function load(strip) {
    const key = `${episode.number}/${strip}`;
    if (!images.has(key)) {
      if (images.size > 60) images.delete(images.keys().next().value);
      const image = new Image();
      image.addEventListener("load", draw);
      image.src = episode.frames.strips[strip];
      images.set(key, image);
    }
    return images.get(key);
  }

  function draw() {
    if (!episode || !episode.frames) return;
    const { width, height, columns, count, strips } = episode.frames;
    const strip = Math.floor(row / count), place = row % count;
    const image = load(strip);
    if (strip + 1 < strips.length) load(strip + 1);
    if (!image.complete || !image.naturalWidth) return;
    const abreast = Math.floor(image.naturalWidth / width);
    const pen = $("canvas").getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, (place % abreast) * width, Math.floor(place / abreast) * height, width, height, 0, 0, $("canvas").width, $("canvas").height);
    $("canvas").dataset.row = row;
  }

  function show(at) {
    row = Math.max(0, Math.min(at, episode.rows.length - 1));
    const step = episode.rows[row], isEnd = step >= episode.length, reward = isEnd ? null : episode.rewards[row];
    $("slider").value = row;
    $("step").textContent = isEnd ? `${number(step)} (end)` : number(step);
    $("action").textContent = isEnd || !episode.actions ? "\u2013" : episode.actions[row].map(part).join(", ") + (episode.parts > episode.actions[row].length ? ", ..." : "");
    $("reward").textContent = number(reward);
    $("reward").className = reward ? "hot" : "";
    $("return").textContent = number(episode.returns[row]);
    const x = across(row, episode.rows.length);
    for (const one of document.querySelectorAll("#player .cursor")) { one.setAttribute("x1", x); one.setAttribute("x2", x); }
    if (episode.lines) episode.lines.forEach((one, n) => { $("legend").children[n].lastChild.textContent = number(one.values[row]); });
    draw();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    $("play").textContent = "Play";
  }

  function play() {
    if (timer) return stop();
    if (row >= episode.rows.length - 1) show(0);
    $("play").textContent = "Pause";
    timer = setInterval(() => (row >= episode.rows.length - 1 ? stop() : show(row + 1)), 1000 / Number($("speed").value));
  }

  async function open(asked) {
    wanted = asked;
    if (!known.has(asked) && data.served) {
      try {
        const answer = await fetch(`episodes/${asked}.json`);
        if (!answer.ok) throw new Error(`${answer.status}`);
        known.set(asked, await answer.json());
        if (known.size > 30) known.delete(known.keys().next().value);
      } catch (error) {
        $("title").textContent = `episode ${asked} cannot be read: ${error.message}`;
        return;
      }
    }
    if (!known.has(asked) || wanted !== asked) return;
    stop();
    episode = known.get(asked);
    $("title").textContent = episode.title + (episode.every > 1 ? `  \u00b7  one row for every ${episode.every} steps` : "");
    document.querySelector("#player .facts").classList.toggle("wide", episode.parts > 1);
    $("slider").max = episode.rows.length - 1;
    if (episode.frames) {
      const times = Math.max(1, Math.round(460 / episode.frames.width));
      $("canvas").width = episode.frames.width * times;
      $("canvas").height = episode.frames.height * times;
    }
    $("pick").value = [...$("pick").options].some((option) => Number(option.value) === asked) ? asked : "";
    if ($("goto")) $("goto").value = asked;
    drawCurves();
    show(0);
  }

  const seek = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const box = $("curve").getBoundingClientRect();
    stop();
    show(Math.round(((event.clientX - box.left) / box.width) * (episode.rows.length - 1)));
  };

  $("play").addEventListener("click", play);
  $("back").addEventListener("click", () => { stop(); show(row - 1); });
  $("next").addEventListener("click", () => { stop(); show(row + 1); });
  $("slider").addEventListener("input", (event) => { stop(); show(Number(event.target.value)); });
  $("speed").addEventListener("change", () => { if (timer) { stop(); play(); } });
  $("pick").addEventListener("change", (event) => { if (event.target.value !== "") open(Number(event.target.value)); });
  if ($("goto")) $("goto").addEventListener("change", (event) => open(Math.max(0, Math.min(Math.floor(Number(event.target.value)) || 0, data.count - 1))));
  $("curve").addEventListener("pointerdown", seek);
  $("curve").addEventListener("pointermove", seek);
  document.addEventListener("click", (event) => {
    const dot = event.target.closest("circle[data-episode]");
    if (dot && (data.served || known.has(Number(dot.dataset.episode)))) open(Number(dot.dataset.episode));
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, button") || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { ArrowLeft: () => { stop(); show(row - 1); }, ArrowRight: () => { stop(); show(row + 1); }, " ": play };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  open(data.first);
})();
