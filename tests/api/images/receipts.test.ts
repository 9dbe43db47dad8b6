import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { getImage } from "../../../src/db/images/images.ts";
import { deleteOperationsFinishedBefore, startOperation } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import type { AccountId, ImageId, OperationId } from "../../../src/domain/ids.ts";
import type { NetworkAudit } from "../../../src/domain/network.ts";
import type { Resource, Statement } from "../../../src/domain/receipts/statement.ts";
import { parseKey, verifyReceipt } from "../../../src/storage/receipts/verification.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { makeLayer } from "../../support/api/layers.ts";
import { cli } from "../../support/cli/cli.ts";

const ALICE = "alice" as AccountId;
const DIGEST = `sha256:${"ab".repeat(32)}`;
const SECRET = "hunter2";
const INPUT = "input of a caller";

let api: Api;
let base: ImageId;
let release: ImageId;
let operation: OperationId;
let file = "";
beforeAll(async () => {
  api = await Api.start();
  base = await addImport("registry.example.net:5000/library/busybox:1", DIGEST);
  file = (await api.call("POST", "/v1/files", { body: INPUT })).json.uuid;
  release = await addRun(base);
});
afterAll(() => api[Symbol.asyncDispose]());

async function addImport(source: string, digest: string): Promise<ImageId> {
  const { db, layout } = api.parts;
  const layer = await makeLayer(layout, [{ path: "etc", type: "d" }]);
  const { id } = api.operations.insert(ALICE, "image_import");
  startOperation(db, id, 1000);
  const image = Bun.randomUUIDv7() as ImageId;
  publishOperation(db, {
    operationId: id,
    result: { image, digest, size_bytes: 1 },
    now: 2000,
    layer: { ...layer, parentId: null, format: "erofs", sizeBytes: layer.diskBytes, baseKey: digest },
    image: {
      id: image,
      parentId: null,
      layerId: layer.id,
      digest,
      sizeBytes: 1,
      defaults: { variables: { PATH: "/bin" }, cwd: null },
      origin: { source },
    },
  });
  return image;
}

const AUDIT: NetworkAudit = {
  entries: [
    ["allowed", 443, ["192.0.2.7"]],
    ["denied", 80, []],
    ["allowed", null, []],
  ].map(([verdict, port, addresses]) => ({
    host: "deb.example.net",
    port: port as number | null,
    verdict: verdict as "allowed" | "denied",
    connections: 2,
    bytes_sent: 10,
    bytes_received: 4000,
    first_at: "2026-11-20T10:30:00Z",
    last_at: "2026-11-20T10:31:00Z",
    addresses: addresses as string[],
  })),
  truncated: false,
};

/** A run as a client asks for it, which has ended. */
async function addRun(parent: ImageId): Promise<ImageId> {
  const { db, layout } = api.parts;
  const { json, status } = await api.call("POST", "/v1/instances", {
    json: {
      image: parent,
      command: "make install",
      env: { TOKEN: SECRET },
      stdin: `typed ${SECRET}`,
      files: { "/srv/input": { uuid: file } },
      resources: { vcpus: 1 },
    },
  });
  expect(status).toBe(201);
  operation = json.uuid as OperationId;
  startOperation(db, operation, 3000);
  const layer = await makeLayer(layout, [
    { path: "etc", type: "d" },
    { path: "etc/made", type: "f", content: "made" },
  ]);
  const image = Bun.randomUUIDv7() as ImageId;
  const below = getImage(db, ALICE, parent)?.layerId ?? null;
  const outputs = { stdout: { truncated: false, bytes: 0 }, stderr: { truncated: false, bytes: 0 } };
  publishOperation(db, {
    operationId: operation,
    result: { exit_code: 3, ...outputs, cpu_time_ms: 1, memory_bytes: 1, timed_out: false, isolation: "vm", image },
    now: 4000,
    network: AUDIT,
    layer: { ...layer, parentId: below, format: "ext4", sizeBytes: layer.diskBytes },
    image: {
      id: image,
      parentId: parent,
      layerId: layer.id,
      sizeBytes: layer.diskBytes,
      defaults: { variables: {}, cwd: null },
      origin: { command: ["/bin/sh", "-c", "make install"], exitCode: 3, network: true },
    },
    tag: "release",
  });
  return image;
}

async function statementOf(image: string): Promise<Statement> {
  const { text, status } = await api.call("GET", `/v1/images/${image}/receipt`);
  expect(status).toBe(200);
  const { json } = await api.call("GET", "/v1/receipts/key");
  return verifyReceipt(text, parseKey(json.public_key));
}
const outcomes = ({ predicate }: Statement) =>
  predicate.runDetails.byproducts.filter(({ name }) => name?.startsWith("step ")).map(({ annotations }) => annotations);

describe('"GET /images/{uuid}/receipt"', () => {
  test("has the import, the steps with their outcomes and networks, and what it does not prove", async () => {
    const { subject, predicateType, predicate } = await statementOf(release);
    expect(predicateType).toBe("https://slsa.dev/provenance/v1");
    expect(subject).toEqual([
      {
        name: release,
        uri: `urn:uuid:${release}`,
        digest: { sha256: expect.stringMatching(/^[0-9a-f]{64}$/) },
        mediaType: "application/vnd.oci.image.manifest.v1+json",
        annotations: { tag: "release" },
      },
    ]);
    const { buildDefinition, runDetails } = predicate;
    expect(buildDefinition.externalParameters.steps).toMatchObject([
      { step: 0, kind: "image_import", image: base, source: "registry.example.net:5000/library/busybox:1" },
      {
        step: 1,
        kind: "instance",
        operation,
        image: release,
        command: ["/bin/sh", "-c", "make install"],
        request: { environmentNames: ["TOKEN"], standardInputBytes: 13, resources: { vcpus: 1 }, network: "none" },
      },
    ]);
    expect(buildDefinition.internalParameters.notProven.length).toBeGreaterThan(5);
    expect(buildDefinition.resolvedDependencies).toEqual([
      {
        name: "registry.example.net:5000/library/busybox:1",
        uri: `pkg:oci/busybox@sha256%3A${"ab".repeat(32)}?repository_url=registry.example.net%3A5000%2Flibrary%2Fbusybox&tag=1`,
        digest: { sha256: "ab".repeat(32) },
      },
      {
        name: "/srv/input",
        uri: `urn:uuid:${file}`,
        digest: { sha256: new Bun.CryptoHasher("sha256").update(INPUT).digest("hex") },
        annotations: { step: 1 },
      },
    ]);
    const { version } = (await api.call("GET", "/healthz", { token: null })).json as { version: string };
    expect(runDetails.builder.version).toEqual({ coppice: version });
    expect(runDetails.metadata).toEqual({
      invocationId: `urn:uuid:${operation}`,
      startedOn: "1970-01-01T00:00:01.000Z",
      finishedOn: "1970-01-01T00:00:04.000Z",
    });
    expect(outcomes({ predicate } as Statement)).toEqual([
      {
        step: 0,
        startedOn: "1970-01-01T00:00:01.000Z",
        finishedOn: "1970-01-01T00:00:02.000Z",
        network: "none",
        isRecorded: true,
      },
      {
        step: 1,
        exitCode: 3,
        startedOn: "1970-01-01T00:00:03.000Z",
        finishedOn: "1970-01-01T00:00:04.000Z",
        isolation: "vm",
        network: {
          reached: [
            {
              host: "deb.example.net",
              port: 443,
              addresses: ["192.0.2.7"],
              connections: 2,
              bytesSent: 10,
              bytesReceived: 4000,
            },
          ],
        },
        isRecorded: true,
      },
    ]);
  });

  test("has no value of a variable and no standard input", async () => {
    expect(JSON.stringify(await statementOf(release))).not.toContain(SECRET);
  });

  test("is about the manifest and the layers of the image's own archive", async () => {
    const statement = await statementOf(release);
    const { bytes } = await api.call("GET", `/v1/images/${release}/save`);
    const read = async (name: string): Promise<Uint8Array> => {
      const child = Bun.spawn(["tar", "-xO", name], { stdin: bytes, stdout: "pipe", stderr: "inherit" });
      return new Uint8Array(await new Response(child.stdout).arrayBuffer());
    };
    const json = async (name: string) => JSON.parse(Buffer.from(await read(name)).toString());
    const [{ digest }] = (await json("index.json")).manifests;
    expect(`sha256:${statement.subject[0]?.digest?.["sha256"]}`).toBe(digest);
    const { layers } = await json(`blobs/${digest.replace(":", "/")}`);
    const named = statement.predicate.runDetails.byproducts.filter(({ name }) => name?.startsWith("layer "));
    expect(named.map(({ digest: of }: Resource) => `sha256:${of?.["sha256"]}`)).toEqual(
      layers.map((layer: { digest: string }) => layer.digest),
    );
    expect(layers).toHaveLength(2);
    // The second receipt takes the digests of the first one.
    expect((await statementOf(release)).subject).toEqual(statement.subject);
    expect(api.parts.layers.held).toEqual([]);
  });

  test("says of a step whose operation has expired, and of a deleted image, only what the lineage knows", async () => {
    const middle = await addRun(base);
    const leaf = await api.addRun(middle, [{ path: "f", type: "f", content: "" }]);
    deleteOperationsFinishedBefore(api.parts.db, 4001, 1000);
    expect((await api.call("DELETE", `/v1/images/${middle}`)).status).toBe(204);
    const statement = await statementOf(leaf);
    const [, step] = statement.predicate.buildDefinition.externalParameters.steps;
    expect(step).toEqual({
      step: 1,
      kind: "instance",
      operation,
      image: middle,
      command: ["/bin/sh", "-c", "make install"],
    });
    expect(outcomes(statement)[1]).toEqual({
      step: 1,
      exitCode: 3,
      startedOn: "1970-01-01T00:00:03.000Z",
      finishedOn: "1970-01-01T00:00:04.000Z",
      network: "not recorded",
      isRecorded: false,
    });
  });

  test("is bounded: long commands are cut, and say so", async () => {
    const argument = "x".repeat(10_000);
    const long = await api.addRun(base, [], { origin: { command: ["tool", argument], exitCode: 0 } });
    const [, step] = (await statementOf(long)).predicate.buildDefinition.externalParameters.steps;
    expect(step?.commandTruncated).toBe(true);
    expect(JSON.stringify(step).length).toBeLessThan(9000);
  });

  test("needs the scope to read operations, and the image of the account", async () => {
    errorOf(await api.call("GET", `/v1/images/${base}/receipt`, { token: api.foreignToken }), "not_found");
    const reader = await api.issue("alice", ["images:read"]);
    errorOf(await api.call("GET", `/v1/images/${base}/receipt`, { token: reader }), "forbidden");
    expect((await api.call("GET", "/v1/receipts/key", { token: reader })).json).toMatchObject({ algorithm: "ed25519" });
    expect((await stat(join(api.parts.layout.keys, "receipts.pem"))).mode & 0o777).toBe(0o600);
  });
});

test("coppice receipt writes a receipt that coppice receipt verify accepts without an appliance", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-receipt-"));
  await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true, force: true }) };
  const here = { COPPICE_URL: api.url, COPPICE_TOKEN: api.token, HOME: "/nonexistent" };
  const nowhere = { COPPICE_URL: "http://127.0.0.1:1", HOME: "/nonexistent" };
  const [receipt, key] = [join(directory, "receipt.json"), join(directory, "key.pem")];
  const written = await cli(["receipt", release], { environment: here });
  await writeFile(receipt, written.stdout);
  await writeFile(key, (await cli(["receipt", "key"], { environment: here })).stdout);
  const verify = (...more: string[]) =>
    cli(["receipt", "verify", receipt, "--key", key, ...more], { environment: nowhere });
  const { code, stdout, stderr } = await verify();
  expect([code, stderr]).toEqual([0, ""]);
  expect(stdout.toString()).toContain(`image:    ${release} sha256:`);
  expect(stdout.toString()).toMatch(/\n1 .* 3 .*make install/);
  expect(stdout.toString()).toContain("It does not prove:\n- ");
  const statement = JSON.parse((await verify("--json")).stdout.toString()) as Statement;
  const digest = `sha256:${statement.subject[0]?.digest?.["sha256"]}`;
  expect((await verify("--digest", digest)).code).toBe(0);
  const other = await verify("--digest", DIGEST);
  expect([other.code, other.stderr]).toEqual([1, expect.stringContaining("another image")]);
  await writeFile(receipt, written.stdout.toString().replace('"payload":"e', '"payload":"f'));
  const changed = await verify();
  expect([changed.code, changed.stderr]).toEqual([1, expect.stringContaining("no signature")]);
  expect((await cli(["receipt", "verify", receipt], { environment: nowhere })).code).toBe(2);
});
