// Sets the theme before anything is painted. Without a choice the system's holds (see app.css).
try {
  const chosen = localStorage.getItem("leveret.theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch { /* Without storage the system's theme holds. */ }
