/** Requests from outside, over sockets, to guests that are servers of the test. */

import { afterEach, beforeEach, describe, expect } from "bun:test";
import { heldTest } from "../../support/api/program.ts";
import { get, IngressScene, ok } from "../../support/ingress/scene.ts";
import { until } from "../../support/waiting.ts";

let scene: IngressScene;
beforeEach(() => {
  scene = new IngressScene();
});
afterEach(() => scene[Symbol.asyncDispose]());

/** Records the requests of a guest that answers all of them. */
async function recorded(host = "a.test", response = ok("yes")): Promise<{ text: string }[]> {
  const requests: { text: string }[] = [];
  await scene.guest(host, (guest) => {
    if (!requests.includes(guest)) requests.push(guest);
    if (/\r\n\r\n/.test(guest.text)) guest.socket.end(response);
  });
  return requests;
}

describe("a request", () => {
  heldTest("reaches the guest of its own Host, on a connection that carries requests for several", async () => {
    await scene.answering("a.test", ok("from a"));
    await scene.answering("b.test", ok("from b"));
    const client = await scene.client();
    for (const [host, body] of [
      ["a.test", "from a"],
      ["b.test", "from b"],
      ["A.test", "from a"],
    ] as const) {
      client.text = "";
      client.send(get(host));
      await client.until(body);
    }
    client.text = "";
    client.send(get("c.test"));
    await client.until("no sandbox has this address");
    // Pipelined requests are answered in order.
    client.text = "";
    client.send(`${get("b.test")}${get("a.test")}${get("b.test", "Connection: close")}`);
    await client.closed;
    expect(client.text.match(/from [ab]/g)).toEqual(["from b", "from a", "from b"]);
  });

  heldTest("carries the fields of the client, and those of the ingress in place of forged ones", async () => {
    const requests = await recorded();
    const fields = [
      ...["X-Forwarded-For: 9.9.9.9", "x_forwarded_for: 9.9.9.9", "Forwarded: for=9.9.9.9", "X-Real-IP: 9.9.9.9"],
      ...["X-Forwarded-Proto: https", "X-Forwarded-Host: evil", "X-Forwarded-Server: evil", "Proxy: evil"],
      ...["Connection: keep-alive, X-Hop", "X-Hop: evil", "Keep-Alive: 5", "TE: trailers", "Content_Length: 7"],
      ...["Accept: */*", "X-Name: \xe9t\xe9"],
    ];
    const client = await scene.client();
    client.send(get("a.test", ...fields));
    await client.until("yes");
    expect(requests[0]?.text.split("\r\n")).toEqual([
      ...["GET / HTTP/1.1", "Host: a.test", "Accept: */*", "X-Name: \xe9t\xe9"],
      ...[
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: a.test",
        "Connection: close",
        "",
        "",
      ],
    ]);
  });

  heldTest("in absolute form names the same host", async () => {
    const requests = await recorded();
    const answer = await scene.ask("GET http://A.TEST/p?q HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    expect(answer).toStartWith("HTTP/1.1 200");
    expect(requests[0]?.text).toStartWith("GET /p?q HTTP/1.1\r\nHost: a.test\r\n");
  });

  heldTest("of HTTP/1.0 is answered without chunks, and closes the connection", async () => {
    await scene.answering("a.test", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n");
    const answer = await scene.ask("GET / HTTP/1.0\r\nHost: a.test\r\n\r\n");
    expect(answer).toBe("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nyes");
  });

  heldTest("with a body is sent on as it comes, with its length or in chunks, without trailers", async () => {
    const requests: { text: string }[] = [];
    await scene.guest("a.test", (guest) => {
      if (!requests.includes(guest)) requests.push(guest);
    });
    const sized = await scene.client();
    sized.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 6\r\n\r\nabc");
    await until("half of the body is there", () => requests[0]?.text.endsWith("\r\n\r\nabc") === true);
    expect(requests[0]?.text).toContain("Content-Length: 6\r\n");
    const chunked = await scene.client();
    chunked.send("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n");
    await until("a chunk is there", () => requests[1]?.text.endsWith("\r\n\r\n3\r\nabc\r\n") === true);
    chunked.send("0\r\nX-Trailer: evil\r\n\r\n");
    await until("the end is there", () => requests[1]?.text.endsWith("abc\r\n0\r\n\r\n") === true);
  });

  heldTest("that expects 100 is continued by the guest, or answered at once", async () => {
    await scene.guest("a.test", ({ socket, text }) => {
      if (text.endsWith("\r\n\r\n")) socket.write("HTTP/1.1 100 Continue\r\n\r\n");
      if (text.endsWith("body")) socket.end(ok("done"));
    });
    await scene.answering("b.test", "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n");
    const head = "POST / HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\nHost:";
    const client = await scene.client();
    client.send(`${head} a.test\r\n\r\n`);
    await client.until("HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body");
    await client.until("done");
    // The connection is at a clean place: it carries another request.
    client.text = "";
    client.send(`${head} b.test\r\n\r\n`);
    await client.closed;
    expect(client.text).toBe("HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    expect(await scene.ask(`${head.replace("100-continue", "x")} a.test\r\n\r\n`)).toStartWith("HTTP/1.1 417");
  });
});

/** Requests whose extent two programs may see differently, and other malformed ones: each must end its connection. */
const SMUGGLED: Readonly<Record<string, readonly [status: number, request: string]>> = {
  "two lengths": [400, post("Content-Length: 3", "Content-Length: 4")],
  "two equal lengths": [400, post("Content-Length: 3", "Content-Length: 3")],
  "a list of lengths": [400, post("Content-Length: 3, 3")],
  "a length with a sign": [400, post("Content-Length: +3")],
  "a negative length": [400, post("Content-Length: -3")],
  "a hexadecimal length": [400, post("Content-Length: 0x3")],
  "an empty length": [400, post("Content-Length:")],
  "a length beyond all numbers": [400, post("Content-Length: 99999999999999999999")],
  "length and chunks": [400, post("Content-Length: 3", "Transfer-Encoding: chunked")],
  "chunks and length": [400, post("Transfer-Encoding: chunked", "Content-Length: 3")],
  "two codings": [501, post("Transfer-Encoding: gzip, chunked")],
  "chunked twice": [501, post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")],
  "chunked and an empty member": [501, post("Transfer-Encoding: ,chunked")],
  "chunked and an empty field": [501, post("Transfer-Encoding: chunked", "Transfer-Encoding:")],
  "chunked and a blank of no list": [501, post("Transfer-Encoding: chunked\xa0")],
  identity: [501, post("Transfer-Encoding: identity")],
  "a coding with a tab inside": [501, post("Transfer-Encoding: chun\tked")],
  "a vertical tab before the coding": [400, post("Transfer-Encoding: \x0bchunked")],
  "a blank before the colon": [400, post("Transfer-Encoding : chunked")],
  "chunks in HTTP/1.0": [400, post("Transfer-Encoding: chunked").replace("HTTP/1.1", "HTTP/1.0")],
  "a folded line": [400, post("X: a", " Transfer-Encoding: chunked")],
  "a folded first field": [400, "GET / HTTP/1.1\r\n Host: a.test\r\n\r\n"],
  "bare LF": [400, "GET / HTTP/1.1\nHost: a.test\n\n"],
  "bare LF in a field": [400, get("a.test", "X: a\nTransfer-Encoding: chunked")],
  "bare CR": [400, get("a.test", "X: a\rTransfer-Encoding: chunked")],
  NUL: [400, get("a.test", "X: a\0b")],
  "no colon": [400, get("a.test", "X")],
  "an empty name": [400, get("a.test", ": x")],
  "a control character in a name": [400, get("a.test", "X\x01: x")],
  "an empty line before": [400, `\r\n${get("a.test")}`],
  "two hosts": [400, get("a.test", "Host: b.test")],
  "an absent host": [400, "GET / HTTP/1.1\r\n\r\n"],
  "another host in the target": [400, "GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "a user in the target": [400, "GET http://b@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "another scheme": [400, "GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "two blanks": [400, "GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "a blank in the target": [400, "GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "a target beyond ASCII": [400, "GET /\xe9 HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "a fragment": [400, "GET /#a HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "a star": [400, "GET * HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  "HTTP/0.9": [400, "GET /\r\n\r\n"],
  "HTTP/2": [505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
  "HTTP/1.2": [505, "GET / HTTP/1.2\r\nHost: a.test\r\n\r\n"],
  CONNECT: [405, "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  TRACE: [405, "TRACE / HTTP/1.1\r\nHost: a.test\r\n\r\n"],
  TLS: [400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\n"],
  "a long line": [431, `GET /${"a".repeat(20_000)} HTTP/1.1\r\nHost: a.test\r\n\r\n`],
  "a long field": [431, get("a.test", `X: ${"a".repeat(20_000)}`)],
  "many fields": [431, get("a.test", ...Array<string>(120).fill("X: a"))],
  "a large head": [431, get("a.test", ...Array<string>(80).fill(`X: ${"a".repeat(500)}`))],
};

/** Bodies in chunks that are malformed. */
const CHUNKS: Readonly<Record<string, string>> = {
  "0x": "0x3\r\nabc\r\n0\r\n\r\n",
  "a sign": "+3\r\nabc\r\n0\r\n\r\n",
  "a blank before": " 3\r\nabc\r\n0\r\n\r\n",
  "a blank after": "3 \r\nabc\r\n0\r\n\r\n",
  "an underscore": "1_0\r\nabc\r\n0\r\n\r\n",
  "an empty size": "\r\nabc\r\n0\r\n\r\n",
  "a size beyond all numbers": "fffffffffffffffff\r\nabc",
  "bare LF": "3\nabc\r\n0\r\n\r\n",
  "LF in an extension": "3;a\nb\r\nabc\r\n0\r\n\r\n",
  "a long extension": `3;${"a".repeat(300)}\r\nabc\r\n0\r\n\r\n`,
  "more bytes than its size": "3\r\nabcd\r\n0\r\n\r\n",
  "bare LF behind the bytes": "3\r\nabc\n0\r\n\r\n",
  "a folded trailer": "0\r\nX: a\r\n b\r\n\r\n",
  "endless trailers": `0\r\n${"X: a\r\n".repeat(200)}`,
};

function post(...fields: readonly string[]): string {
  return ["POST / HTTP/1.1", "Host: a.test", ...fields, "", "3\r\nabc\r\n0\r\n\r\n"].join("\r\n");
}

describe("a malformed request", () => {
  for (const [name, [status, request]] of Object.entries(SMUGGLED)) {
    heldTest(`with ${name} is refused before a guest sees it, and ends the connection`, async () => {
      const requests = await recorded();
      const answer = await scene.ask(`${request}${get("a.test")}`);
      expect(answer).toStartWith(`HTTP/1.1 ${status} `);
      expect(answer.match(/^HTTP\/1\.1 \d/gm)).toHaveLength(1);
      expect(answer).toContain("Connection: close\r\n");
      expect(requests).toEqual([]);
    });
  }

  for (const [name, body] of Object.entries(CHUNKS)) {
    heldTest(`with a chunk with ${name} is refused, and ends the connection`, async () => {
      const requests: { text: string }[] = [];
      await scene.guest("a.test", (guest) => void requests.push(guest));
      const head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
      const answer = await scene.ask(`${head}${body}${get("a.test")}`);
      expect(answer).toMatch(/^HTTP\/1\.1 4(?:00|31) /);
      expect(answer.match(/^HTTP\/1\.1 \d/gm)).toHaveLength(1);
      // The guest saw an incomplete body at most.
      expect(requests.every(({ text }) => !text.endsWith("0\r\n\r\n") && !text.includes("GET /"))).toBe(true);
    });
  }
});
