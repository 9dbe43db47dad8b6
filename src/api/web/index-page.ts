import { randomBytes } from "node:crypto";
import type { Reply } from "../reply.ts";
import { WEB_ASSETS_PATH, type WebManifest } from "./bundle.ts";

/** Length of the nonce of an answer, in `bytes`. */
const NONCE_BYTES = 16;

const INDEX_HEADERS = {
  "content-type": "text/html; charset=utf-8",
  // The nonce is for one answer, and the hashed names are those of this version.
  "cache-control": "no-store",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "x-frame-options": "DENY",
};

/**
 * The HTML of the page; its script builds everything else. The nonce is for style elements of libraries; a browser shows it
 * to scripts as a property, and hides it from selectors.
 */
export function indexPage({ script, style, preloads, icon }: WebManifest): Reply {
  const nonce = randomBytes(NONCE_BYTES).toString("base64");
  const address = (name: string): string => `${WEB_ASSETS_PATH}${name}`;
  const lines = [
    "<!doctype html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8">',
    "<title>Coppice</title>",
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    `<meta name="csp-nonce" nonce="${nonce}">`,
    `<link rel="icon" type="image/svg+xml" href="${address(icon)}">`,
    `<link rel="stylesheet" href="${address(style)}">`,
    ...preloads.map((name) => `<link rel="modulepreload" href="${address(name)}">`),
    `<script type="module" src="${address(script)}"></script>`,
    "</head>",
    "<body>",
    '<div id="app"></div>',
    "<noscript>This page needs JavaScript. The API and the command line do not.</noscript>",
    "</body>",
    "</html>",
  ];
  return {
    status: 200,
    headers: { ...INDEX_HEADERS, "content-security-policy": policyOf(nonce) },
    body: `${lines.join("\n")}\n`,
  };
}

function policyOf(nonce: string): string {
  return [
    "default-src 'none'",
    "script-src 'self'",
    `style-src 'self' 'nonce-${nonce}'`,
    "img-src 'self' blob:",
    "connect-src 'self'",
    "worker-src 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    // Text cannot become markup or a script, not even by mistake. The only policy is for the address of the worker.
    "require-trusted-types-for 'script'",
    "trusted-types coppice",
  ].join("; ");
}
