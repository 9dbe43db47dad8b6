/** The network of an instance that may use all that the operator allows, except some ranges of addresses. */

import { expect, setDefaultTimeout, test } from "bun:test";
import { Guest, verdicts } from "../support/network/guest.ts";
import { ring } from "../support/network/ring.ts";
import { ADDRESSES } from "../support/network/site/site.ts";
import { PEER_PORTS } from "../support/network/site/site-peers.ts";
import { until } from "../support/waiting.ts";

setDefaultTimeout(180_000);

const { echo } = PEER_PORTS;
const ALL_RANGES = ["0.0.0.0/0", "::/0"];

/** Opens a connection, says so, and prints how it ends. */
const hold = (host: string) => `python3 -u - <<'END'
import socket
s = socket.create_connection(("${host}", ${echo}))
s.sendall(b"held")
print(s.recv(4).decode())
try: print(len(s.recv(1)))
except ConnectionResetError: print("reset")
END`;

async function change(guest: Guest, network: object): Promise<void> {
  const answer = await ring().appliance.fetch(`/instances/${guest.id}`, {
    method: "PATCH",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ network }),
  });
  if (answer.status !== 200) throw new Error(`PATCH: ${answer.status} ${await answer.text()}`);
}

test("denied ranges are not reached by name or address, and what is open is reset when they change", async () => {
  const { names, peers, bystander } = ring().site;
  names.set("both.test", ADDRESSES.web, ADDRESSES.peers);
  await using guest = await Guest.start({
    network: { default: "allow", deny: [`${ADDRESSES.web}/32`, "2600:7::/32"] },
  });
  for (const host of ["www.test", ADDRESSES.web, "six.test", ADDRESSES.web6, "both.test"]) {
    expect([host, await guest.probe(`connect ${host} 80`)]).toEqual([
      host,
      expect.stringMatching(/^(?:EHOSTUNREACH|EACCES)$/),
    ]);
  }
  const [byName, byAddress] = [await guest.begin(hold("peer.test")), await guest.begin(hold(ADDRESSES.peers))];
  for (const held of [byName, byAddress]) {
    await until("the connection is open", async () => (await guest.written(held)).out === "held\n");
  }
  const deny = [ADDRESSES.peers];
  await change(guest, { default: "allow", deny, allow: [{ host: "peer.test", ports: [echo] }] });
  expect((await guest.ended(byAddress)).out).toBe("held\nreset\n");
  expect((await guest.written(byName)).state).toBe("running");
  expect(await guest.output("curl -sS -o /dev/null -w '%{size_download}' http://www.test/bytes/7")).toBe("7");
  await change(guest, { default: "allow", deny });
  expect((await guest.ended(byName)).out).toBe("held\nreset\n");
  await until("the peer has noticed", () => peers.open.size === 0);
  expect(await guest.probe(`connect peer.test ${echo}`)).toBe("EHOSTUNREACH");
  // Addresses of the site stay out of reach, whatever the rules give back.
  await change(guest, { default: "allow", deny: ALL_RANGES, allow: [{ host: "10.0.0.0/8", ports: [80] }] });
  expect(await guest.probe("connect 10.0.0.1 80")).toBe("EHOSTUNREACH");
  expect(bystander.seen).toEqual([]);
  const { audit } = await guest.end();
  expect(verdicts(audit, "peer.test")).toEqual(expect.arrayContaining([`${echo} allowed 1`, `${echo} denied 2`]));
  expect(audit.policies?.map(({ connections_reset }) => connections_reset)).toEqual([0, 1, 1, 0]);
});

test("when all addresses are denied, only the names of rules exist, and no name server is asked for others", async () => {
  const { nameServer } = ring().site;
  const allow = [{ host: "www.test", ports: [80] }];
  await using guest = await Guest.start({ network: { default: "allow", deny: ALL_RANGES, allow } });
  const before = nameServer.asked.length;
  expect(await guest.probe("lookup peer.test")).toContain("EAI_NONAME");
  expect(nameServer.asked.length).toBe(before);
  expect(await guest.output("curl -sS -o /dev/null -w '%{size_download}' http://www.test/bytes/7")).toBe("7");
  expect(await guest.probe(`connect ${ADDRESSES.web} 80`)).toBe("EHOSTUNREACH");
});
