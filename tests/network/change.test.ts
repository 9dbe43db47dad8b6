/** The network of a running instance that is changed. */

import { expect, setDefaultTimeout, test } from "bun:test";
import { given } from "../../src/domain/given.ts";
import type { NetworkAudit } from "../../src/domain/network.ts";
import { Guest, verdicts } from "../support/network/guest.ts";
import { ring } from "../support/network/ring.ts";
import { PEER_PORTS } from "../support/network/site/site-peers.ts";
import { type Body, operationOf } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

setDefaultTimeout(180_000);

const WEB = { host: "www.test", ports: [80] };
const PEER = { host: "peer.test", ports: [PEER_PORTS.echo] };

async function set(guest: Guest, network: object | "none"): Promise<Body> {
  const answer = await ring().appliance.fetch(`/instances/${guest.id}`, {
    method: "PATCH",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ network }),
  });
  const body = (await answer.json()) as Body;
  if (answer.status !== 200) throw new Error(`PATCH: ${answer.status} ${JSON.stringify(body)}`);
  return body;
}

/** Opens a connection, says so, and prints how it ends. */
const HOLD = `python3 -u - <<'END'
import socket
s = socket.create_connection(("peer.test", ${PEER_PORTS.echo}))
s.sendall(b"held")
print(s.recv(4).decode())
try: print(len(s.recv(1)))
except ConnectionResetError: print("reset")
END`;

test("an instance without a network gets one, and loses it", async () => {
  await using guest = await Guest.start({ network: "none" });
  expect(await guest.probe("connect 20.0.0.9 80")).toBe("ENETUNREACH");
  expect(await guest.probe("lookup www.test")).toContain("EAI_NONAME");
  expect((await set(guest, { allow: [WEB] }))["network"]).toEqual({ allow: [WEB], tls: "sni" });
  expect(await guest.output("curl -sS -o /dev/null -w '%{size_download}' http://www.test/bytes/7")).toBe("7");
  expect((await guest.run("curl -s -m 8 http://deb.test/")).code).toBe(6);
  expect(await set(guest, "none")).toEqual({ uuid: guest.id, network: "none" });
  expect(await guest.probe("lookup www.test")).toContain("EAI_NONAME");
  expect(await guest.probe("connect 20.0.0.9 80")).toBe("ENETUNREACH");
  await set(guest, { allow: [PEER] });
  expect(await guest.probe(`connect peer.test ${PEER_PORTS.echo}`)).toMatch(/^connected /);
  const { audit } = await guest.end();
  expect(audit.policies?.map(({ network }) => network)).toEqual([
    ...(["none", { allow: [WEB], tls: "sni" }, "none", { allow: [PEER], tls: "sni" }] as const),
  ]);
  expect(verdicts(audit, "www.test")).toContain("80 allowed 1");
});

test("a change resets the connections that it does not permit, and no other", async () => {
  await using guest = await Guest.start({ network: { allow: [WEB, PEER] } });
  const held = await guest.begin(HOLD);
  await until("the connection is open", async () => (await guest.written(held)).out === "held\n");
  await set(guest, { allow: [PEER] });
  expect((await guest.run("curl -s -m 8 http://www.test/")).code).toBe(6);
  expect((await guest.written(held)).state).toBe("running");
  const { peers } = ring().site;
  expect(peers.open.size).toBe(1);
  await set(guest, { allow: [WEB] });
  expect((await guest.ended(held)).out).toBe("held\nreset\n");
  await until("the peer has noticed", () => peers.open.size === 0);
  expect(await guest.probe(`connect peer.test ${PEER_PORTS.echo}`)).toBe("EAI_NONAME");
  expect(await guest.output("curl -sS -o /dev/null -w '%{size_download}' http://www.test/bytes/7")).toBe("7");
  const { audit } = await guest.end();
  expect(audit.policies?.map(({ connections_reset }) => connections_reset)).toEqual([0, 0, 1]);
  expect(verdicts(audit, "peer.test")).toEqual(
    expect.arrayContaining([`${PEER_PORTS.echo} allowed 1`, `${PEER_PORTS.echo} denied 1`]),
  );
});

test("an account changes neither the network of another one's instance, nor beyond the ceiling", async () => {
  const { appliance } = ring();
  await using guest = await Guest.start({ network: { allow: [WEB] } });
  const patch = (network: object, token?: string) =>
    appliance.fetch(`/instances/${guest.id}`, {
      method: "PATCH",
      headers: { "content-type": "application/json" },
      ...given({ token }),
      body: JSON.stringify({ network }),
    });
  expect((await patch({ allow: [PEER] }, await appliance.createToken("stranger"))).status).toBe(404);
  expect((await patch({ allow: [WEB, { host: "www.example" }] })).status).toBe(403);
  expect((await operationOf(appliance, guest.id))["status"]).toBe("EXECUTING");
  expect(await guest.probe(`connect peer.test ${PEER_PORTS.echo}`)).toBe("EAI_NONAME");
  const { audit } = await guest.end();
  expect(audit.policies).toBeUndefined();
});

test("a sandbox gets a network while it runs, and keeps it over a pause", async () => {
  const { appliance, image } = ring();
  const send = async (method: string, path: string, body?: object): Promise<Body> => {
    const headers = { "content-type": "application/json" };
    const answer = await appliance.fetch(`/sandboxes${path}`, { method, headers, ...given({ body: textOf(body) }) });
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
    return (await answer.json()) as Body;
  };
  const textOf = (body: object | undefined) => (body === undefined ? undefined : JSON.stringify(body));
  const { uuid } = await send("POST", "?wait=60", { image });
  const exitOf = async (command: string): Promise<unknown> => {
    const { spid } = await send("POST", `/${uuid}/processes`, { command, shell: true, user: "root" });
    const read = () => send("GET", `/${uuid}/processes/${spid}`);
    await until("the process has ended", async () => (await read())["state"] !== "running");
    return (await read())["exit_code"];
  };
  const curl = "curl -s -m 8 -o /dev/null http://www.test/bytes/7";
  expect(await exitOf(curl)).toBe(6);
  const { network, instance } = await send("PATCH", `/${uuid}`, { network: { allow: [WEB] } });
  expect(network).toEqual({ allow: [WEB], tls: "sni" });
  expect(await exitOf(curl)).toBe(0);
  await send("POST", `/${uuid}/pause?wait=60`);
  const first = (await operationOf(appliance, String(instance)))["result"] as { network: NetworkAudit };
  expect(first.network.policies?.map((each) => each.network)).toEqual([
    ...(["none", { allow: [WEB], tls: "sni" }] as const),
  ]);
  expect(verdicts(first.network, "www.test")).toContain("80 allowed 1");
  // A request resumes it.
  expect(await exitOf(curl)).toBe(0);
  expect((await send("PATCH", `/${uuid}`, { network: null }))["network"]).toBeNull();
  expect(await exitOf(curl)).toBe(6);
  await send("DELETE", `/${uuid}`);
});
