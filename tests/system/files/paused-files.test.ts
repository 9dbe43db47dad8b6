/** Files of a sandbox, read from its machine and, once it is paused, from its head: both say the same. */
import { expect, setDefaultTimeout, test } from "bun:test";
import { Client } from "../../../src/client/client.ts";
import { changeFile, listFiles, makeDirectory, readFile, writeFile } from "../../../src/client/guest-files.ts";
import type { GuestEntry } from "../../../src/client/types.ts";
import { BusyboxCommands } from "../../support/appliance/busybox-commands.ts";

setDefaultTimeout(240_000);

const box = new BusyboxCommands();
interface Sandbox {
  readonly uuid: string;
  readonly state: string;
}

/** The fields that an image has as well. */
function lasting({ user: _user, group: _group, attributes: _attributes, ...entry }: GuestEntry) {
  return entry.type === "directory" ? { ...entry, size: 0, links: 0 } : entry;
}

test("reads of a paused sandbox say what its machine said, and a write resumes it", async () => {
  const { appliance, image } = box;
  const client = new Client({ url: appliance.url, token: appliance.token });
  const json = { image, name: "files", timeout: 600 };
  const opened = await client.exchange<Sandbox>("POST", "/sandboxes?wait=60", { json, deadline: false });
  expect(opened.state).toBe("running");
  const place = { sandbox: opened.uuid };
  const at = (path: string) => ({ place, path });
  await writeFile(client, at("/work/a b/ü"), new Blob(["content"]), { mode: "0640" });
  await writeFile(client, at("/work/long"), new Blob([Buffer.alloc(3_000_000, "0123456789")]));
  await makeDirectory(client, at("/work/empty"), { mode: "0700" });
  await changeFile(client, at("/work/long"), { owner: { uid: 1000, gid: 100 } });
  const state = async () => {
    const entries = await Array.fromAsync(listFiles(client, at("/work"), { depth: 64 }));
    const bin = await Array.fromAsync(listFiles(client, at("/bin")));
    const byPath = (a: GuestEntry, b: GuestEntry) => (a.path < b.path ? -1 : 1);
    const long = await (await readFile(client, at("/work/long"), { start: 1_234_567 })).bytes();
    const text = await (await readFile(client, at("/work/a b/ü"))).text();
    return { entries: [...entries, ...bin].sort(byPath).map(lasting), long: Bun.hash(long), text };
  };
  const running = await state();
  expect(running.entries.length).toBeGreaterThan(5);
  const paused = await client.exchange<Sandbox>("POST", "/sandboxes/name:files/pause?wait=60", { deadline: false });
  expect(paused.state).toBe("paused");
  expect(await state()).toEqual(running);
  expect((await client.exchange<Sandbox>("GET", "/sandboxes/name:files")).state).toBe("paused");
  await writeFile(client, at("/work/again"), new Blob(["x"]));
  expect((await client.exchange<Sandbox>("GET", "/sandboxes/name:files")).state).toBe("running");
  expect((await state()).text).toBe("content");
  await client.call("DELETE", "/sandboxes/name:files");
});
