// Shows /openapi.json as a list of routes, without a library.
const document_ = await (await fetch("/openapi.json")).json();
const make = (tag, text, className = "") => {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = className;
  return node;
};
document.getElementById("title").textContent = document_.info.title;
const place = document.getElementById("routes");
for (const [path, methods] of Object.entries(document_.paths)) {
  for (const [method, about] of Object.entries(methods)) {
    if (!about.summary) continue;
    const card = make("article", "", "route");
    const line = make("h2", "");
    line.append(make("code", method.toUpperCase(), "method"), " ", make("code", path));
    card.append(line, make("p", about.summary));
    for (const parameter of about.parameters ?? [])
      card.append(make("p", `${parameter.name}: ${parameter.description}`, "dim"));
    if (about.requestBody) {
      const details = make("details", "");
      details.append(make("summary", "request body"), make("pre", JSON.stringify(about.requestBody.content, null, 2)));
      card.append(details);
    }
    place.append(card);
  }
}
