import { afterAll, beforeAll, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import type { Destination } from "../../../src/domain/network.ts";
import { type GateConnection, GateError } from "../../../src/network/gate.ts";
import { guestRequest, type TestGate, testGate } from "../../support/network/gate.ts";
import { type Peer, peer } from "../../support/network/peers.ts";

setDefaultTimeout(60_000);

const never = new AbortController().signal;
const at = (host: string, kind: Destination["kind"] = "address"): Destination => ({ kind, host, port: 80 });

/** the proxy of the site, which says yes to everything */
let proxy: Peer;
let outside: TestGate;
/** what the proxy was asked for */
let asked: string[] = [];
beforeAll(async () => {
  proxy = await peer((socket) => {
    socket.once("data", (head: Buffer) => {
      asked.push(head.toString().split("\r\n")[0] ?? "");
      socket.write("HTTP/1.1 200 OK\r\n\r\nfrom behind");
      socket.end();
    });
  });
  const address = { kind: "http", host: "127.0.0.1", port: proxy.port, credentials: null } as const;
  outside = await testGate({ proxy: address });
});
beforeEach(() => {
  asked = [];
});
afterAll(async () => {
  await outside[Symbol.asyncDispose]();
  await proxy[Symbol.asyncDispose]();
});

/** What comes from behind the proxy, or the verdict. */
async function reached(...request: Parameters<typeof guestRequest>): Promise<string> {
  let connection: GateConnection;
  try {
    connection = await outside.gate.connect(guestRequest(...request), never);
  } catch (error) {
    if (error instanceof GateError) return error.verdict;
    throw error;
  }
  connection.end();
  const chunks = await Array.fromAsync(connection.chunks());
  return Buffer.concat(chunks).toString();
}

test("a name is the proxy's to resolve", async () => {
  expect(await reached(at("www.site.test", "name"))).toBe("from behind");
  expect(asked).toEqual(["CONNECT www.site.test:80 HTTP/1.1"]);
});

test.each(["10.0.0.1", "169.254.169.254", "127.0.0.1", "::1", "fd00::1", "64:ff9b::10.0.0.1"])(
  "the address %s, which a client wrote itself, is refused before the proxy is asked",
  async (host) => {
    expect(await reached(at(host))).toBe("denied_private");
    expect(asked).toEqual([]);
  },
);

test("an address that is public, or that the operator excepts, is passed to the proxy", async () => {
  expect(await reached(at("93.184.215.14"))).toBe("from behind");
  expect(await reached(at("10.0.7.5"), { except: ["10.0.7.0/24"] })).toBe("from behind");
  expect(asked).toEqual(["CONNECT 93.184.215.14:80 HTTP/1.1", "CONNECT 10.0.7.5:80 HTTP/1.1"]);
});
