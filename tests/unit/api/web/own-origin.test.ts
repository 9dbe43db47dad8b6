import { expect, test } from "bun:test";
import { isOwnOrigin } from "../../../../src/api/web/own-origin.ts";

const PUBLIC = "https://coppice.example/box";

test.each([
  ["http://127.0.0.1:8642", "127.0.0.1:8642"],
  ["http://localhost:8642", "localhost:8642"],
  ["http://a.localhost:8642", "A.localhost:8642"],
  ["http://[::1]:8642", "[::1]:8642"],
  ["http://192.168.1.5", "192.168.1.5:80"],
  ["http://box:8642", "box:8642"],
  ["http://box.local", "box.local"],
  ["http://box.home.arpa", "box.home.arpa"],
  ["http://box.internal.", "box.internal."],
  // A server that speaks TLS for this name has its certificate.
  ["https://coppice.example.net", "coppice.example.net"],
  ["https://coppice.example.net", "coppice.example.net:443"],
  ["https://coppice.example", null],
  ["https://coppice.example", "127.0.0.1:8642"],
])("%s at %p is the own one", (origin, host) => {
  expect(isOwnOrigin(origin, host, PUBLIC)).toBe(true);
});

test.each([
  ["http://127.0.0.1:8642", "127.0.0.1:8643"],
  ["http://127.0.0.1:8642", "localhost:8642"],
  ["http://127.0.0.1:8642", null],
  ["http://127.0.0.1:8642", ""],
  ["http://127.0.0.1:8642", "127.0.0.1:8642@evil.example"],
  ["http://evil.example", "evil.example"],
  ["http://evil.example:8642", "evil.example:8642"],
  ["http://evil.example.", "evil.example."],
  ["http://127.0.0.1.evil.example", "127.0.0.1.evil.example"],
  ["http://local.example", "local.example"],
  ["http://coppice.example", "127.0.0.1:8642"],
  ["https://coppice.example:444", "127.0.0.1:8642"],
  ["https://coppice.example.evil.example", "127.0.0.1:8642"],
  ["null", "null"],
  ["", ""],
  ["file://", ""],
  ["chrome-extension://box", "box"],
  ["ws://127.0.0.1:8642", "127.0.0.1:8642"],
])("%s at %p is another one", (origin, host) => {
  expect(isOwnOrigin(origin, host, PUBLIC)).toBe(false);
});

test("without a public address, only the Host header counts", () => {
  expect(isOwnOrigin("https://coppice.example", "127.0.0.1:8642", null)).toBe(false);
  expect(isOwnOrigin("http://box:8642", "box:8642", null)).toBe(true);
});
