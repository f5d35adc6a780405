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
