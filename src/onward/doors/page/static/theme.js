// Before the first paint, so that a dark page does not flash white. The page itself sets it later.
try {
  const chosen = localStorage.getItem("onward.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {}
