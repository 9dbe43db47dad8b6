/** Clients and guests that are slow or many, and the end of the listener. */

import { afterEach, describe, expect } from "bun:test";
import { answer } from "../../../src/ingress/answers.ts";
import type { Times } from "../../../src/ingress/times.ts";
import type { Visit } from "../../../src/ingress/upstream.ts";
import { createLog } from "../../../src/log.ts";
import { heldTest } from "../../support/api/program.ts";
import { get, IngressScene, ok, type Peer } from "../../support/ingress/scene.ts";
import { until } from "../../support/waiting.ts";

let scene: IngressScene;
afterEach(() => scene[Symbol.asyncDispose]());

/** A scene in which one wait is over at once, and all others last. */
function hasty(name: keyof Times): void {
  scene = new IngressScene({ times: { [name]: 20 } });
}

describe("a client", () => {
  heldTest("that drips a head gets 408 when its time is over", async () => {
    hasty("headMs");
    await scene.answering("a.test", ok("yes"));
    const quiet = await scene.client();
    expect(await scene.ask("GET / HTTP/1.1\r\nHost: a.test\r\nX: ")).toStartWith("HTTP/1.1 408 ");
    // The time begins with the first byte.
    quiet.send(get("a.test", "Connection: close"));
    await quiet.closed;
    expect(quiet.text).toStartWith("HTTP/1.1 200 ");
  });

  heldTest("that sends no further request is closed", async () => {
    hasty("idleMs");
    await scene.answering("a.test", ok("yes"));
    expect(await scene.ask("")).toBe("");
    expect(await scene.ask(get("a.test"))).toBe(ok("yes"));
  });

  heldTest("that does not send its body gets 408, and its guest is closed", async () => {
    hasty("bodyMs");
    await scene.guest("a.test", () => undefined);
    const head = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\n";
    expect(await scene.ask(`${head}four`)).toStartWith("HTTP/1.1 408 ");
    await until("the guest's connection is closed", () => scene.connectionsCount === 0);
  });

  heldTest("that does not read is closed, and so is its guest", async () => {
    hasty("stallMs");
    await scene.answering("a.test", Buffer.concat([Buffer.from("HTTP/1.1 200 OK\r\n\r\n"), Buffer.alloc(64 << 20)]));
    const client = await scene.client();
    client.socket.pause();
    client.send(get("a.test"));
    await until("the guest is connected", () => scene.visits.length === 1);
    await until("the guest's connection is closed", () => scene.connectionsCount === 0);
  });

  heldTest("whose guest does not answer gets 504", async () => {
    hasty("answerMs");
    await scene.guest("a.test", ({ socket }) => void socket.write("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1"));
    const answer = await scene.ask(get("a.test"));
    expect(answer).toContain("HTTP/1.1 504 ");
    expect(scene.connectionsCount).toBe(0);
  });

  heldTest("that leaves in its head, its body or its answer leaves nothing behind", async () => {
    scene = new IngressScene();
    await scene.guest("a.test", ({ socket }) => void socket.write("HTTP/1.1 200 OK\r\n\r\nbegin"));
    for (const bytes of ["GET", get("a.test"), "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\nfour"]) {
      const client = await scene.client();
      client.send(bytes);
      if (bytes.length > 3) await client.until("begin");
      client.socket.destroy();
    }
    await until("no connection is left", () => scene.connectionsCount === 0 && scene.listener.clientsCount === 0);
  });
});

describe("many clients", () => {
  heldTest("keep a thousand connections of one address, each of which answers again", async () => {
    scene = new IngressScene();
    await scene.answering("a.test", ok("yes"));
    const clients: Peer[] = [];
    for (let n = 0; n < 1000; n++) clients.push(await scene.client());
    for (let round = 1; round <= 2; round++) {
      for (const client of clients) client.send(get("a.test"));
      for (const client of clients) await client.until(ok("yes").repeat(round));
    }
    expect(scene.listener.clientsCount).toBe(1000);
    expect(scene.connectionsCount).toBeLessThanOrEqual(1000);
  });

  heldTest("push out the connection that has been idle longest, and none with a request", async () => {
    scene = new IngressScene({ connectionsMax: 8 });
    await scene.guest("a.test", () => undefined);
    await scene.answering("b.test", ok("yes"));
    const busy = await scene.client();
    busy.send(get("a.test"));
    await until("the guest is connected", () => scene.connectionsCount === 1);
    // An address has at most half: three of these are idle.
    const idle: Peer[] = [];
    for (let n = 0; n < 3; n++) {
      const client = await scene.client();
      client.send(get("b.test"));
      await client.until("yes");
      idle.push(client);
    }
    const next = await scene.client();
    next.send(get("b.test"));
    await next.until("yes");
    await idle[0]?.closed;
    expect(scene.listener.clientsCount).toBe(4);
    expect(busy.socket.closed).toBe(false);
    idle[1]?.send(get("b.test"));
    await idle[1]?.until(ok("yes").repeat(2));
  });

  heldTest("with requests leave no room for another one of their address", async () => {
    scene = new IngressScene({ connectionsMax: 8 });
    await scene.guest("a.test", () => undefined);
    for (let n = 1; n <= 4; n++) {
      (await scene.client()).send(get("a.test"));
      await until("the guest is connected", () => scene.connectionsCount === n);
    }
    expect(await scene.ask(get("a.test"))).toBe("");
    expect(scene.listener.clientsCount).toBe(4);
  });
});

describe("a client that sends requests before it has answers", () => {
  heldTest("leaves a turn of the event loop to others after each of them", async () => {
    let [inTurn, mostInTurn, count] = [0, 0, 0];
    const decide = async () => {
      if (inTurn === 0) {
        setImmediate(() => {
          inTurn = 0;
        });
      }
      inTurn++;
      mostInTurn = Math.max(mostInTurn, inTurn);
      count++;
      return answer(404, "absent");
    };
    scene = new IngressScene({ upstream: { decide } });
    const client = await scene.client();
    client.send(get("a.test").repeat(500));
    await until("all are answered", () => count === 500);
    expect(mostInTurn).toBeLessThanOrEqual(2);
  });
});

describe("a reverse proxy in front", () => {
  heldTest("names the client and its protocol; its last entry counts", async () => {
    scene = new IngressScene({ isBehindProxy: true });
    await scene.answering("a.test", ok("yes"));
    const forwarded = ["X-Forwarded-For: 9.9.9.9, 198.51.100.7", "X-Forwarded-Proto: http, https"];
    await scene.ask(get("a.test", ...forwarded, "Connection: close"));
    await scene.ask(get("a.test", "X-Forwarded-For: evil", "Connection: close"));
    expect(scene.visits.map(({ address, isSecure }) => ({ address, isSecure }))).toEqual([
      { address: "198.51.100.7", isSecure: true },
      { address: "127.0.0.1", isSecure: false },
    ]);
  });
});

describe("the end of the listener", () => {
  heldTest("closes idle connections, and lets a request finish", async () => {
    scene = new IngressScene();
    const release = Promise.withResolvers<void>();
    await scene.guest("a.test", ({ socket }) => void release.promise.then(() => socket.end(ok("late"))));
    const [idle, busy] = [await scene.client(), await scene.client()];
    busy.send(get("a.test"));
    await until("the guest is connected", () => scene.connectionsCount === 1);
    const stopped = scene.listener.stop(60_000);
    await idle.closed;
    release.resolve();
    await busy.closed;
    expect(busy.text).toContain("late");
    await stopped;
    expect(scene.listener.clientsCount).toBe(0);
  });
});

describe("a tunnel", () => {
  heldTest("whose machine is lost while the client leaves just ends", async () => {
    const lines: string[] = [];
    const log = createLog({ level: "error", format: "json", write: (line) => void lines.push(line) });
    const decide = async (visit: Visit) => ({
      head: visit.head,
      cookies: new Set<string>(),
      connect: async () => {
        const { connection, ...held } = await scene.connect("a.test");
        const end = async () => {
          connection.reset();
          throw new Error("the agent is lost");
        };
        return { ...held, connection: { ...connection, end } };
      },
    });
    scene = new IngressScene({ upstream: { decide }, log });
    await scene.guest("a.test", ({ socket }) => {
      socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nbye");
    });
    const client = await scene.client();
    client.send(get("a.test", "Upgrade: x", "Connection: Upgrade"));
    await client.until("bye");
    client.socket.end();
    await until("no connection is left", () => scene.listener.clientsCount === 0 && scene.connectionsCount === 0);
    expect(lines).toEqual([]);
  });
});

describe("an error of the appliance", () => {
  heldTest("is 500 without its text, which is in the log", async () => {
    const lines: string[] = [];
    const log = createLog({ level: "error", format: "json", write: (line) => void lines.push(line) });
    const decide = () => Promise.reject(new Error("disk I/O"));
    scene = new IngressScene({ upstream: { decide }, log });
    const answer = await scene.ask(get("a.test", "Connection: close"));
    expect(answer).toStartWith("HTTP/1.1 500 Internal Server Error\r\n");
    expect(answer).not.toContain("disk");
    expect(lines.join("")).toContain("disk I/O");
  });
});
