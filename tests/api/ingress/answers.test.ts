/** Answers of guests, honest and hostile ones, as a client outside gets them. */

import { afterEach, beforeEach, describe, expect } from "bun:test";
import { heldTest } from "../../support/api/program.ts";
import { get, IngressScene, ok, type Peer } from "../../support/ingress/scene.ts";
import { turns, until } from "../../support/waiting.ts";

let scene: IngressScene;
beforeEach(() => {
  scene = new IngressScene();
});
afterEach(() => scene[Symbol.asyncDispose]());

/** Sends a GET to a guest that answers with `bytes`; resolves to everything that the client receives. */
async function answerTo(bytes: string, request = get("a.test", "Connection: close")): Promise<string> {
  await scene.answering("a.test", bytes);
  return await scene.ask(request);
}

const CLOSE = "Connection: close\r\n";

describe("an answer", () => {
  heldTest("keeps its status, reason, fields and body", async () => {
    const answer = await answerTo("HTTP/1.1 404 Nicht gef\xfcnden\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 3\r\n\r\nno!");
    expect(answer).toBe(`HTTP/1.1 404 Nicht gef\xfcnden\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 3\r\n${CLOSE}\r\nno!`);
  });

  heldTest("in chunks arrives chunk by chunk, without trailers, and the connection stays open", async () => {
    const release = Promise.withResolvers<void>();
    await scene.guest("a.test", ({ socket }) => {
      socket.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
      socket.write("9\r\ndata: 1\n\n\r\n9\r\n");
      void release.promise.then(() => socket.end("data: 2\n\n\r\n0\r\nX-Trailer: evil\r\n\r\n"));
    });
    const client = await scene.client();
    client.send(get("a.test"));
    await client.until("9\r\ndata: 1\n\n\r\n");
    release.resolve();
    await client.until("9\r\ndata: 2\n\n\r\n0\r\n\r\n");
    expect(client.text).not.toContain("Trailer:");
    client.text = "";
    client.send(get("b.test"));
    await client.until("HTTP/1.1 404");
  });

  heldTest("without a length ends with its connection: in chunks for HTTP/1.1", async () => {
    expect(await answerTo("HTTP/1.0 200 OK\r\nX: 1\r\n\r\nthe end")).toBe(
      `HTTP/1.1 200 OK\r\nX: 1\r\nTransfer-Encoding: chunked\r\n${CLOSE}\r\n7\r\nthe end\r\n0\r\n\r\n`,
    );
  });

  heldTest("to HEAD, and with 204 and 304, has no body, whatever the guest sends", async () => {
    await scene.answering("a.test", `${ok("body")}HTTP/1.1 200 OK\r\n\r\nmore`);
    const client = await scene.client();
    client.send(get("a.test").replace("GET", "HEAD"));
    await client.until("\r\n\r\n");
    expect(client.text).toBe("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n");
    for (const [status, fields] of [
      [204, ""],
      [304, "Content-Length: 9\r\n"],
    ] as const) {
      await scene.answering("b.test", `HTTP/1.1 ${status} X\r\nContent-Length: 9\r\n\r\nnine byte`);
      client.text = "";
      client.send(get("b.test"));
      await client.until("\r\n\r\n");
      expect(client.text).toBe(`HTTP/1.1 ${status} X\r\n${fields}\r\n`);
    }
    // Nothing of the bodies is left on the connection.
    client.text = "";
    client.send(get("a.test", "Connection: close"));
    await client.closed;
    expect(client.text).toBe(`HTTP/1.1 200 OK\r\nContent-Length: 4\r\n${CLOSE}\r\nbody`);
  });

  heldTest("has nothing behind its length: a guest cannot answer the next request", async () => {
    await scene.answering("a.test", `${ok("one")}${ok("smuggled")}`);
    await scene.answering("b.test", ok("two"));
    const client = await scene.client();
    client.send(`${get("a.test")}${get("b.test", "Connection: close")}`);
    await client.closed;
    expect(client.text).toBe(`${ok("one")}${ok("two").replace("\r\n\r\n", `\r\n${CLOSE}\r\n`)}`);
  });

  heldTest(
    "begins with early hints for clients of HTTP/1.1 alone, and with 100 only when the client waits for it",
    async () => {
      const hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nSet-Cookie: a=b\r\n\r\n";
      const bytes = `HTTP/1.1 100 Continue\r\n\r\n${hints}${ok("yes")}`;
      const answer = await answerTo(bytes);
      expect(answer).toStartWith("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n");
      expect(await scene.ask("GET / HTTP/1.0\r\nHost: a.test\r\n\r\n")).toStartWith("HTTP/1.1 200 OK\r\n");
    },
  );

  heldTest("has no field with effects beyond its own host", async () => {
    const dropped = [
      ...[
        'Alt-Svc: h3=":443"',
        "Strict-Transport-Security: max-age=9",
        'Clear-Site-Data: "cookies"',
        "Set-Cookie2: a=b",
      ],
      ...["X-Accel-Redirect: /etc", "X_Accel_Redirect: /etc", "X-Sendfile: /etc", "Proxy-Authenticate: Basic"],
      ...["Keep-Alive: timeout=5", "Connection: X-Hop, keep-alive", "X-Hop: 1", "Upgrade: h2c", "Trailer: X"],
    ];
    const kept = ["Location: http://other.test/", "Service-Worker-Allowed: /", "X-Accel-Buffering: no", "Server: x"];
    expect(await answerTo(ok("", ...dropped, ...kept))).toBe(
      ["HTTP/1.1 200 OK", ...kept, "Content-Length: 0", "Connection: close", "", ""].join("\r\n"),
    );
  });

  heldTest("sets cookies for its own host alone, and none of the ingress", async () => {
    const answer = await answerTo(
      ok(
        "",
        ...["Set-Cookie: a=1; Domain=test; Path=/", "set-cookie: b=2; domain = .TEST ;HttpOnly", "Set-Cookie: c=3"],
        ...[
          "Set-Cookie: reserved=1",
          "Set_Cookie: reserved=1",
          "Set-Cookie:  reserved =1; Path=/",
          "Set-Cookie: =reserved=1",
          "Set-Cookie: = =reserved=1; Path=/",
          "Set-Cookie: d=;domain",
        ],
      ),
    );
    expect(answer.split("\r\n").filter((line) => /^set.cookie/i.test(line))).toEqual([
      ...["Set-Cookie: a=1; Path=/", "set-cookie: b=2;HttpOnly", "Set-Cookie: c=3", "Set-Cookie: d="],
    ]);
  });
});

/** Answers that no client may see as they are. */
const MALFORMED: Readonly<Record<string, string>> = {
  "no HTTP at all": "SSH-2.0-OpenSSH_9.2\r\n",
  "an empty answer": "",
  "half a head": "HTTP/1.1 200 OK\r\nX: 1\r\n",
  "two lengths": ok("abc", "Content-Length: 4"),
  "length and chunks": ok("abc", "Transfer-Encoding: chunked"),
  "an unknown coding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
  "chunks in HTTP/1.0": "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
  "a folded line": ok("abc", "X: a", " b"),
  "bare LF": "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
  "bare CR": ok("abc", "X: a\rSet-Cookie: b"),
  NUL: ok("abc", "X: a\0b"),
  "a status of four digits": "HTTP/1.1 2000 OK\r\n\r\n",
  "status 999": "HTTP/1.1 999 OK\r\n\r\n",
  "HTTP/2": "HTTP/2.0 200 OK\r\n\r\n",
  "a protocol that was not requested":
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
  "endless interim answers": "HTTP/1.1 102 Processing\r\n\r\n".repeat(100),
  "many fields": ok("", ...Array<string>(200).fill("X: 1")),
  "a large head": ok("", ...Array<string>(90).fill(`X: ${"a".repeat(900)}`)),
};

describe("a guest", () => {
  for (const [name, bytes] of Object.entries(MALFORMED)) {
    heldTest(`that answers with ${name} gives 502`, async () => {
      const answer = await answerTo(bytes);
      expect(answer.replace(/^(?:HTTP\/1\.1 102 Processing\r\n\r\n)+/, "")).toStartWith("HTTP/1.1 502 Bad Gateway\r\n");
      expect(answer).toContain("the program on this port did not answer as HTTP/1.1");
      expect(answer).not.toContain("Set-Cookie");
    });
  }

  heldTest("whose body ends early leaves an answer without an end, and no further one", async () => {
    for (const body of [
      "Content-Length: 9\r\n\r\nfour",
      "Transfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n",
      "Transfer-Encoding: chunked\r\n\r\n4\r\nfour\r\nzz\r\n",
    ]) {
      await scene.answering("a.test", `HTTP/1.1 200 OK\r\n${body}`);
      const client = await scene.client();
      client.send(`${get("a.test")}${get("b.test")}`);
      await client.closed;
      expect(client.text).not.toContain("0\r\n\r\n");
      expect(client.text).not.toContain("404");
    }
  });

  heldTest("that listens no longer gives 502 with a page for people and JSON for programs", async () => {
    await scene.guest("a.test", () => undefined);
    await scene.closeGuest("a.test");
    const page = await scene.ask(get("a.test", "Accept: text/html,*/*;q=0.8", "Connection: close"));
    expect(page).toMatch(/^HTTP\/1\.1 502 .*<p>port is not open<\/p>/s);
    expect(page).toContain("Content-Security-Policy: default-src 'none'");
    const json = await scene.ask(get("a.test", "Connection: close"));
    expect(JSON.parse(json.split("\r\n\r\n")[1] ?? "")).toMatchObject({ message: "port is not open" });
  });

  heldTest("loses its connection when the client leaves", async () => {
    await scene.guest("a.test", () => undefined);
    const client = await scene.client();
    client.send(get("a.test"));
    await until("the guest is connected", () => scene.connectionsCount === 1);
    client.socket.destroy();
    await until("the guest's connection is closed", () => scene.connectionsCount === 0);
  });

  heldTest(
    "that sends faster than the client reads waits, and so does a client that is faster than its guest",
    async () => {
      let sentBytes = 0;
      const piece = Buffer.alloc(1 << 20, "x");
      const totalBytes = 256 << 20;
      await scene.guest("a.test", ({ socket }) => {
        socket.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        const more = () => {
          while (sentBytes < totalBytes && socket.writable) {
            sentBytes += piece.byteLength;
            if (!socket.write(piece)) return void socket.once("drain", more);
          }
          socket.end();
        };
        more();
      });
      const reader = await scene.client();
      reader.socket.pause();
      reader.send(get("a.test"));
      await stalls(() => sentBytes);
      expect(sentBytes).toBeLessThan(64 << 20);
      await scene.guest("b.test", ({ socket }) => void socket.pause());
      const writer = await scene.client();
      let writtenBytes = 0;
      writer.send(`POST / HTTP/1.1\r\nHost: b.test\r\nContent-Length: ${totalBytes}\r\n\r\n`);
      const send = (peer: Peer) => {
        while (writtenBytes < totalBytes) {
          writtenBytes += piece.byteLength;
          if (!peer.socket.write(piece)) return void peer.socket.once("drain", () => send(peer));
        }
      };
      send(writer);
      await stalls(() => writtenBytes);
      expect(writtenBytes).toBeLessThan(64 << 20);
    },
  );
});

/** Waits until a count has moved, and has then stayed the same for many turns. */
async function stalls(count: () => number): Promise<void> {
  let last = -1;
  await until("nothing moves", async () => {
    const before = last;
    last = count();
    await turns(100);
    return last > 0 && before === last && last === count();
  });
}

describe("a WebSocket", () => {
  const UPGRADE = ["Upgrade: websocket", "Connection: keep-alive, Upgrade", "Sec-WebSocket-Key: AAAA"];

  /** A guest that echoes in capitals after the switch. */
  async function echo(): Promise<void> {
    await scene.guest("a.test", (guest) => {
      const at = guest.text.indexOf("\r\n\r\n");
      if (at < 0) return;
      const head = guest.text.slice(0, at);
      if (!guest.switched) {
        guest.switched = true;
        expect(head).toContain("\r\nUpgrade: websocket\r\nConnection: Upgrade");
        guest.socket.write(
          "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: 1\r\n\r\nhello ",
        );
      }
      guest.socket.write(guest.text.slice(at + 4).toUpperCase());
      guest.text = `${head}\r\n\r\n`;
    });
  }

  heldTest("is a tunnel after the switch, with what was sent early, until one side ends", async () => {
    await echo();
    const client = await scene.client();
    client.send(`${get("a.test", ...UPGRADE)}early`);
    await client.until("hello EARLY");
    expect(client.text).toStartWith(
      "HTTP/1.1 101 Switching Protocols\r\nX: 1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    );
    // Requests in the tunnel are bytes of the same guest.
    client.send(get("b.test"));
    await client.until("HOST: B.TEST");
    expect(scene.visits).toHaveLength(1);
    client.send("last");
    client.socket.end();
    await until("the guest's connection is closed", () => scene.connectionsCount === 0);
  });

  heldTest("is an ordinary request where the ingress passes no switch", async () => {
    const heads: string[] = [];
    await scene.guest("a.test", ({ socket, text }) => {
      heads.push(text);
      socket.end(ok(""));
    });
    for (const fields of [
      ["Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAAA"],
      ["Upgrade: websocket, h2c", "Connection: Upgrade"],
      ["Upgrade: websocket"],
    ]) {
      await scene.ask(get("a.test", ...fields, "Connection: close"));
    }
    expect(heads).toHaveLength(3);
    expect(heads.join("")).not.toMatch(/upgrade|http2/i);
  });
});
