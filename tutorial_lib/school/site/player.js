// Shows one of a player's frames; the slider is moved by mouse or arrow keys.
document.addEventListener("DOMContentLoaded", () => {
  for (const player of document.querySelectorAll(".player")) {
    const frames = player.querySelectorAll(".frame");
    const slider = player.querySelector("input");
    const show = () => frames.forEach((frame, n) => { frame.hidden = n + 1 !== Number(slider.value); });
    slider.addEventListener("input", show);
    show();
  }
});

// Draws a figure with sliders in place of its image, where a page has one.
document.addEventListener("DOMContentLoaded", () => {
  const places = document.querySelectorAll(".moving");
  if (!places.length) return;
  const vega = Object.assign(document.createElement("script"), {type: "module"});  // names of its own
  vega.src = new URL("vega.js", document.querySelector("script[src*='player.js']").src);
  vega.onload = () => places.forEach((place) => {
    vegaEmbed(place.querySelector("div"), JSON.parse(place.querySelector("script").text));
  });
  document.head.append(vega);
});
