/** The steps that changed a path, with layers of machines, before and after these are merged. */
import { Database } from "bun:sqlite";
import { afterAll, beforeAll, expect, test } from "bun:test";
import { dataLayout } from "../../../src/storage/layout.ts";
import type { Appliance, Finished } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { until } from "../../support/waiting.ts";

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base = "";

beforeAll(async () => {
  const flags = ["--layers-merged-share", "10"];
  ({ appliance, image: base } = owned.use(await BusyboxAppliance.start({ flags })));
}, 180_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const imageOf = (operation: Finished) => (operation.result as { image: string }).image;
interface Changes {
  readonly items: readonly { change: string; below?: true; step: { uuid: string } }[];
}

test("a path's log names the runs that wrote, moved and removed it, and is the same when their layers are merged", async () => {
  const commands = {
    make: "mkdir -p /srv/a/d && echo 1 > /srv/a/f && ln /srv/a/f /srv/a/hard && echo x > /srv/a/d/x",
    write: "echo 22 >> /srv/a/f",
    move: "mv /srv/a /srv/b",
    touch: "cat /srv/b/f && touch /srv/other",
    remake: "rm -r /srv/b/d && mkdir /srv/b/d && echo y > /srv/b/d/y && rm /srv/b/f && ln -s other /srv/b/f",
  };
  const names = new Map([[base, "import"]]);
  let image = base;
  for (const [name, command] of Object.entries(commands)) {
    const operation = await appliance.run(image, command);
    expect(operation.result).toMatchObject({ exit_code: 0 });
    image = imageOf(operation);
    names.set(image, name);
  }
  const log = async (path: string): Promise<string[]> => {
    const answer = await appliance.fetch(`/inspect/${image}/log?path=${path}`);
    const { items } = (await answer.json()) as Changes;
    return items.map(({ change, below, step }) => `${change}${below ? " below" : ""}: ${names.get(step.uuid)}`);
  };
  const paths = [
    "/srv/a/f",
    "/srv/a",
    "/srv/b/f",
    "/srv/b/hard",
    "/srv/b/d",
    "/srv/b/d/x",
    "/srv/other",
    "/bin/busybox",
  ];
  const logs = async () =>
    Object.fromEntries(await Promise.all(paths.map(async (path) => [path, await log(path)] as const)));
  const before = await logs();
  expect(before).toEqual({
    "/srv/a/f": ["removed: move", "modified: write", "added: make"],
    "/srv/a": ["removed: move", "modified below: write", "added: make"],
    "/srv/b/f": ["replaced: remake", "added: move"],
    "/srv/b/hard": ["added: move"],
    "/srv/b/d": ["replaced: remake", "added: move"],
    "/srv/b/d/x": ["removed: remake", "added: move"],
    "/srv/other": ["added: touch"],
    "/bin/busybox": ["added: import"],
  });
  const merged = () => {
    using db = new Database(dataLayout(appliance.dataDir).database, { readonly: true });
    return db.query("SELECT id FROM merged_layers").all().length;
  };
  await until("layers are merged", () => merged() > 0, 120_000);
  expect(await logs()).toEqual(before);
  const { items, steps } = (await (await appliance.fetch(`/inspect/${image}/blame?path=/srv`)).json()) as {
    readonly items: readonly { name: string; image: string }[];
    readonly steps: readonly { uuid: string; command: readonly string[] }[];
  };
  expect(items.map(({ name, image: by }) => [name, names.get(by)])).toEqual([
    ["b", "remake"],
    ["other", "touch"],
  ]);
  expect(steps[0]?.command.at(-1)).toBe(commands.remake);
}, 400_000);
