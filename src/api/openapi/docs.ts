import type { Reply } from "../reply.ts";
import type { JsonObject } from "./openapi-schema.ts";

const STYLE = `
:root { color-scheme: light dark; --edge: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--edge); }
details { border: 1px solid var(--edge); border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; }
code, pre { font: .9em ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; border-radius: .3rem; }
.method { display: inline-block; min-width: 4.5em; font-weight: bold; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid var(--edge); }
`;

/** Only the page's own style may load: no script, and nothing from outside. */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  `style-src 'sha256-${new Bun.CryptoHasher("sha256").update(STYLE).digest("base64")}'`,
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

/** The API description as an HTML page without scripts. */
export function docsPage(document: JsonObject): Reply {
  const info = objectOf(document["info"]);
  const body = [
    `<h1>${escapeHtml(info["title"])} <small>${escapeHtml(info["version"])}</small></h1>`,
    `<p>${escapeHtml(info["description"])} The machine-readable description is <a href="/openapi.json">/openapi.json</a>.</p>`,
    ...arrayOf(document["tags"]).map((tag) => tagSection(document, tag)),
    `<h2 id="schemas">Schemas</h2>`,
    ...Object.entries(objectOf(objectOf(document["components"])["schemas"])).map(schemaSection),
  ].join("\n");
  return {
    status: 200,
    headers: {
      "content-type": "text/html; charset=utf-8",
      "content-security-policy": CONTENT_SECURITY_POLICY,
      "referrer-policy": "no-referrer",
      "cache-control": "no-cache",
    },
    body: `<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>${escapeHtml(info["title"])}</title>
<meta name="viewport" content="width=device-width"><style>${STYLE}</style></head><body>\n${body}\n</body></html>\n`,
  };
}

function tagSection(document: JsonObject, tag: JsonObject): string {
  const sections: string[] = [];
  for (const [path, item] of Object.entries(objectOf(document["paths"]))) {
    for (const [method, operation] of Object.entries(objectOf(item))) {
      const described = objectOf(operation);
      if (String(arrayOf(described["tags"])[0]) === String(tag["name"])) {
        sections.push(operationSection(method, path, described));
      }
    }
  }
  return `<h2>${escapeHtml(tag["name"])}</h2>\n<p>${escapeHtml(tag["description"])}</p>\n${sections.join("\n")}`;
}

function operationSection(method: string, path: string, operation: JsonObject): string {
  const parameters = arrayOf(operation["parameters"]).map((parameter) => {
    const rule = `<code>${escapeHtml(JSON.stringify(parameter["schema"]))}</code>`;
    const required = parameter["required"] === true ? "required" : "";
    return [
      `<code>${escapeHtml(parameter["name"])}</code>`,
      escapeHtml(parameter["in"]),
      required,
      escapeHtml(parameter["description"]),
      rule,
    ];
  });
  const responses = Object.entries(objectOf(operation["responses"])).map(([status, value]) => {
    const response = objectOf(value);
    const headers = Object.keys(objectOf(response["headers"])).join(", ");
    return [escapeHtml(status), escapeHtml(response["description"]), contentOf(response), escapeHtml(headers)];
  });
  const body = operation["requestBody"];
  return [
    `<details id="${escapeHtml(operation["operationId"])}"><summary><span class="method">${escapeHtml(method.toUpperCase())}</span>`,
    `<code>${escapeHtml(path)}</code> ${escapeHtml(operation["summary"])}</summary>`,
    `<p>${escapeHtml(operation["description"] ?? "No token is needed.")}</p>`,
    parameters.length === 0 ? "" : table(["parameter", "in", "", "meaning", "schema"], parameters),
    body === undefined ? "" : `<p>Body: ${contentOf(objectOf(body))}</p>`,
    table(["status", "meaning", "body", "headers"], responses),
    "</details>",
  ].join("\n");
}

function schemaSection([name, schema]: [string, unknown]): string {
  const text = escapeHtml(JSON.stringify(schema, null, 2));
  return `<details id="schema-${escapeHtml(name)}"><summary><code>${escapeHtml(name)}</code></summary><pre>${text}</pre></details>`;
}

function contentOf(holder: JsonObject): string {
  return Object.entries(objectOf(holder["content"]))
    .map(([type, media]) => `<code>${escapeHtml(type)}</code> ${schemaLink(objectOf(objectOf(media)["schema"]))}`)
    .join("<br>");
}

function schemaLink(schema: JsonObject): string {
  const reference = String(schema["$ref"] ?? objectOf(schema["items"])["$ref"] ?? "");
  const name = escapeHtml(reference.split("/").at(-1));
  if (name === "") return "";
  return `${schema["type"] === "array" ? "array of " : ""}<a href="#schema-${name}">${name}</a>`;
}

function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const head = heads.map((cell) => `<th>${cell}</th>`).join("");
  const body = rows.map((row) => `<tr>${row.map((cell) => `<td>${cell}</td>`).join("")}</tr>`).join("\n");
  return `<table><tr>${head}</tr>\n${body}</table>`;
}

function escapeHtml(value: unknown): string {
  return Bun.escapeHTML(String(value ?? ""));
}

function objectOf(value: unknown): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject) : {};
}

function arrayOf(value: unknown): readonly JsonObject[] {
  return Array.isArray(value) ? (value as JsonObject[]) : [];
}
