import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { digestOf } from "../../../src/oci/manifest.ts";
import { Appliance } from "../../support/appliance/appliance.ts";
import { cli } from "../../support/cli/cli.ts";
import { eventsOf, type WireEvent } from "../../support/event-client.ts";
import { layer, layoutFiles, RawRegistry, rawImage } from "../../support/images/hostile-images.ts";
import { tar } from "../../support/images/tar.ts";
import { seededRandom } from "../../support/random.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(120_000);

const SEEN_MS_MAX = 60_000;
const LAYER_BYTES = 2_000_000;

const owned = new AsyncDisposableStack();
let registry: RawRegistry;
let appliance: Appliance;

beforeAll(async () => {
  registry = owned.use(new RawRegistry());
  appliance = owned.use(await Appliance.start({ registries: [registry.host] }));
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** A layer of incompressible content, different for each seed. */
function someLayer(seed: number) {
  const content = Buffer.from(seededRandom(seed).bytes(LAYER_BYTES)).toString("latin1");
  const { blob, ...rest } = layer({ path: `file-${seed}`, content });
  if (blob === null) throw new Error("a layer without a blob");
  return { ...rest, blob: new Uint8Array(blob), digest: digestOf(blob) };
}

const submitted = async (path: string, request: object): Promise<string> => {
  const response = await appliance.post(path, request);
  expect(response.status).toBe(202);
  return ((await response.json()) as { uuid: string }).uuid;
};
const progressOf = (events: readonly WireEvent[]) => events.filter(({ type }) => type === "progress");
const stepsOf = (events: readonly WireEvent[]) => [...new Set(progressOf(events).map(({ data }) => data.step))];

/** Bytes of each layer in the order of the reports; fails when a figure decreases. */
function pulledOf(events: readonly WireEvent[]): Map<string, number> {
  const pulled = new Map<string, number>();
  let all = 0;
  for (const { data } of progressOf(events).filter((event) => event.data.layers !== undefined)) {
    expect(data.pulled_bytes).toBeGreaterThan(all);
    all = data.pulled_bytes;
    for (const { digest, pulled_bytes: bytes, size_bytes: size } of data.layers) {
      expect(bytes).toBeGreaterThan(pulled.get(digest) ?? 0);
      expect(bytes).toBeLessThanOrEqual(size);
      pulled.set(digest, bytes);
    }
  }
  return pulled;
}

test("an import reports its steps, and the bytes of each layer while they arrive", async () => {
  const [first, second] = [someLayer(1), someLayer(2)];
  const reference = registry.add("slow", rawImage([first, second]));
  const goOn = Promise.withResolvers<void>();
  const { blob, digest } = second;
  const half = Math.floor(blob.byteLength / 2);
  const body = async function* () {
    yield blob.subarray(0, half);
    await goOn.promise;
    yield blob.subarray(half);
  };
  registry.setBlob(digest, () => new Response(body() as unknown as ReadableStream));
  const id = await submitted("/images/import", { registry: reference });
  await until(
    "half of the second layer has arrived",
    async () => (pulledOf(await eventsOf(appliance, id)).get(digest) ?? 0) > 0,
    SEEN_MS_MAX,
  );
  await until(
    "the first layer has arrived",
    async () => pulledOf(await eventsOf(appliance, id)).get(first.digest) === first.blob.byteLength,
    SEEN_MS_MAX,
  );
  const before = pulledOf(await eventsOf(appliance, id));
  expect(before.get(digest) ?? 0).toBeGreaterThan(0);
  expect(before.get(digest) ?? 0).toBeLessThan(blob.byteLength);
  goOn.resolve();
  expect(await appliance.finished(id)).toMatchObject({ status: "SUCCESS" });
  const events = await eventsOf(appliance, id);
  expect(stepsOf(events)).toEqual(["resolving", "pulling", "unpacking", "building", "indexing"]);
  expect(pulledOf(events)).toEqual(
    new Map([
      [first.digest, first.blob.byteLength],
      [digest, blob.byteLength],
    ]),
  );
  expect(events.at(-1)).toMatchObject({ type: "completion", data: { status: "SUCCESS" } });
});

test("an import of a digest that the account has imported before only resolves", async () => {
  const reference = registry.add("twice", rawImage([someLayer(3)]));
  const ids: string[] = [];
  for (let count = 0; count < 2; count++) {
    const id = await submitted("/images/import", { registry: reference });
    expect(await appliance.finished(id)).toMatchObject({ status: "SUCCESS" });
    ids.push(id);
  }
  expect(stepsOf(await eventsOf(appliance, ids[1] ?? ""))).toEqual(["resolving"]);
});

test("an import that fails ends with the step that failed, and says so", async () => {
  const good = someLayer(4);
  const reference = registry.add("cut", rawImage([good]));
  registry.setBlob(good.digest, good.blob.subarray(0, 1000));
  const id = await submitted("/images/import", { registry: reference });
  expect(await appliance.finished(id)).toMatchObject({ status: "FAILED" });
  const events = await eventsOf(appliance, id);
  expect(stepsOf(events)).toEqual(["resolving", "pulling"]);
  expect(events.at(-1)).toMatchObject({ type: "completion", data: { status: "FAILED" } });
});

test("the import of an archive reports the same steps", async () => {
  const archive = tar(layoutFiles(rawImage([someLayer(5)])));
  const upload = await appliance.fetch("/files", { method: "POST", body: new Uint8Array(archive) });
  const { uuid } = (await upload.json()) as { uuid: string };
  const id = await submitted("/images/load", { file: uuid });
  expect(await appliance.finished(id)).toMatchObject({ status: "SUCCESS" });
  expect(stepsOf(await eventsOf(appliance, id))).toEqual(["resolving", "pulling", "unpacking", "building", "indexing"]);
});

test("the command line shows the step and the received bytes on a terminal", async () => {
  const layer = someLayer(6);
  const { blob, digest } = layer;
  const reference = registry.add("shown", rawImage([layer]));
  const drawn = Promise.withResolvers<void>();
  const body = async function* () {
    yield blob.subarray(0, LAYER_BYTES / 2);
    await drawn.promise;
    yield blob.subarray(LAYER_BYTES / 2);
  };
  registry.setBlob(digest, () => new Response(body() as unknown as ReadableStream));
  const environment = { COPPICE_URL: appliance.url, COPPICE_TOKEN: appliance.token };
  let shownText = "";
  // The rest of the layer arrives only after this line was printed.
  const { code } = await cli(["image", "import", reference], {
    ...{ environment, terminal: true },
    stderr: (text) => {
      shownText += text;
      if (/importing, pulling \S+ [KM]iB of \S+ MiB \(/.test(shownText)) drawn.resolve();
    },
  });
  expect(code).toBe(0);
  const piped = await cli(["image", "import", reference], { environment });
  expect(piped.stderr).toStartWith("imported ");
});
