for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = button.dataset.copy, label = button.textContent;
    try { await navigator.clipboard.writeText(text); }
    catch {
      const area = document.createElement("textarea");
      area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    button.textContent = "Copied"; setTimeout(() => { button.textContent = label; }, 1200);
  });
}
