import { afterAll, beforeAll, expect, test } from "bun:test";
import { readBranches, readChanges } from "../../../src/client/branches.ts";
import { Client } from "../../../src/client/client.ts";
import { runCommand } from "../../../src/client/runs.ts";
import type { BranchRow, Change } from "../../../src/client/types.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";

let host: BusyboxAppliance;
let client: Client;
beforeAll(async () => {
  host = await BusyboxAppliance.start({ tag: "busybox" });
  client = new Client({ url: host.appliance.url, token: host.appliance.token });
});
afterAll(() => host[Symbol.asyncDispose]());

test("a run is reported from its acceptance to its end, and its image is a branch of the one it ran on", async () => {
  const seen: Change[] = [];
  let running: ReturnType<typeof runCommand> | null = null;
  for await (const change of readChanges(client)) {
    seen.push(change);
    // No change after the first one is missing.
    running ??= runCommand(client, { image: host.image, command: "touch", args: ["/root/new"] });
    if (change.type === "operation" && change.status === "SUCCESS") break;
  }
  const states = seen.flatMap((change) => (change.type === "operation" ? [change.status] : []));
  expect(states.at(-1)).toBe("SUCCESS");
  expect(states).toContain("EXECUTING");
  const ended = seen.at(-1) as Extract<Change, { readonly type: "operation" }>;
  expect(ended).toMatchObject({ kind: "instance", image: host.image, about: "touch /root/new" });
  const row = { type: "image", uuid: ended.result, parent: host.image, about: "touch /root/new", exit_code: 0 };
  expect(seen.filter(({ type }) => type === "image")).toEqual([expect.objectContaining(row)] as never);
  const rows: BranchRow[] = (await Array.fromAsync(readBranches(client))).flat();
  expect(rows.map((row) => (row.type === "image" ? row.uuid : row.type))).toEqual([
    host.image,
    ended.result ?? "",
    "end",
  ]);
  expect((await running)?.image).toBe(ended.result);
});
