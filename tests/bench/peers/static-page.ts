import { randomBytes } from "node:crypto";

/** The script's share of all bytes; the rest is style. */
const SCRIPT_SHARE = 0.85;

/** A page that needs nothing but its files: one text, a style and a script, of so many bytes together. */
export async function startStaticPage(bytes: number): Promise<AsyncDisposable & { readonly url: string }> {
  const scriptBytes = Math.round(bytes * SCRIPT_SHARE);
  const files: Record<string, { readonly type: string; readonly text: string }> = {
    "/": { type: "text/html", text: PAGE },
    "/style.css": { type: "text/css", text: `p { color: black }\n${comment(bytes - scriptBytes)}` },
    "/script.js": { type: "text/javascript", text: `document.title = "static";\n${comment(scriptBytes)}` },
  };
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch({ url }) {
      const file = files[new URL(url).pathname];
      if (file === undefined) return new Response(null, { status: 404 });
      return new Response(file.text, { headers: { "content-type": file.type } });
    },
  });
  return { url: server.url.href, [Symbol.asyncDispose]: () => server.stop(true) };
}

const PAGE = `<!doctype html><html lang="en"><head><title>page</title><link rel="stylesheet" href="/style.css">
<script src="/script.js"></script></head><body><p>A page.</p></body></html>`;

/** Of text that does not compress. */
function comment(bytes: number): string {
  return `/* ${randomBytes(Math.ceil((bytes * 3) / 4)).toString("base64url")} */`;
}
