import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { BusyboxCommands } from "../../support/appliance/busybox-commands.ts";
import { type Body, bytesOf, upload } from "../../support/runs.ts";

setDefaultTimeout(120_000);

const MIB = 1_048_576;

const box = new BusyboxCommands();
const { shell } = box;
const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");
/** Random bytes, in which a lost or repeated piece shows. */
function noise(sizeBytes: number): Buffer {
  const bytes = Buffer.alloc(sizeBytes);
  for (let word = 0, state = 1; word + 4 <= sizeBytes; word += 4) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    bytes.writeUInt32LE(state, word);
  }
  return bytes;
}

describe("POST /instances stdin", () => {
  test.concurrent("absent is /dev/null; empty is an input that ends at once", async () => {
    const absent = await shell("readlink /proc/self/fd/0; cat | wc -c");
    expect(absent.out).toBe("/dev/null\n0\n");
    const empty = await shell("readlink /proc/self/fd/0; cat | wc -c", { stdin: "" });
    expect(empty.out).toMatch(/^pipe:\[\d+\]\n0\n$/);
  });

  // spec: instances.stdin
  test.concurrent("plain ASCII and base64 arrive byte for byte, and the input then ends", async () => {
    const ascii = `\0\x01\x7f line\n"quotes" base64: $HOME`;
    expect((await shell("cat", { stdin: ascii })).stdout).toEqual({
      content: ascii,
      encoding: "ascii",
      truncated: false,
    });
    const bytes = noise(1000);
    const binary = await shell("cat", { stdin: `base64:${bytes.toString("base64")}` });
    expect(bytesOf(binary.stdout)).toEqual(bytes);
  });

  test.concurrent("up to its limit of 10 MiB, with a slow reader", async () => {
    const bytes = noise(10 * MIB);
    const stdin = `base64:${bytes.toString("base64")}`;
    const slow = shell("(dd bs=1M count=3 iflag=fullblock 2>/dev/null; sleep 2; cat) | sha256sum", { stdin });
    const quick = shell("sha256sum", { stdin });
    for (const { out } of [await slow, await quick]) expect(out).toBe(`${sha256(bytes)}  -\n`);
  });

  test.concurrent("a command that never reads, or closes its input early, ends normally", async () => {
    const stdin = "x".repeat(10 * MIB);
    const [never, closed, gone] = await Promise.all([
      shell("sleep 1; echo done", { stdin }),
      shell("exec <&-; sleep 1; echo closed; exit 4", { stdin }),
      shell("exit 5", { stdin }),
    ]);
    expect(never).toMatchObject({ exit_code: 0, out: "done\n" });
    expect(closed).toMatchObject({ exit_code: 4, out: "closed\n" });
    expect(gone).toMatchObject({ exit_code: 5 });
  });

  test.concurrent("more than 10 MiB, a character that is not ASCII, and invalid base64 are 400", async () => {
    const refused = [
      "x".repeat(10 * MIB + 1),
      `base64:${noise(10 * MIB + 1).toString("base64")}`,
      "ä",
      "base64:a",
      "base64:ab-_",
    ];
    for (const stdin of refused) {
      const response = await box.appliance.post("/instances", { image: box.image, command: "cat", stdin });
      expect([response.status, ((await response.json()) as Body)["error"]]).toEqual([400, "validation_error"]);
    }
  });
});

describe("the output object", () => {
  // spec: output.encoding
  test.concurrent("encoding is ascii while every byte is below 0x80, NUL and control bytes too, else base64", async () => {
    const ascii = await shell("printf '\\000\\001\\033[0m\\177\\r\\n'; printf '\\200' >&2");
    expect(ascii.stdout).toEqual({ content: "\0\x01\x1b[0m\x7f\r\n", encoding: "ascii", truncated: false });
    expect(ascii.stderr).toEqual({ content: "gA==", encoding: "base64", truncated: false });
    const nothing = await shell("true");
    expect(nothing.stdout).toEqual({ content: "", encoding: "ascii", truncated: false });
  });

  // spec: result.outputs, output.content
  test.concurrent("stdout and stderr, interleaved and large, are each whole and in order", async () => {
    const command = "i=0; while [ $i -lt 4000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    const result = await shell(command);
    const lines = (word: string) => Array.from({ length: 4000 }, (_, index) => `${word} ${index}\n`).join("");
    expect(result.out).toBe(lines("out"));
    expect(result.err).toBe(lines("err"));
  });

  test.concurrent("10 MiB of binary output in each stream at the same time are kept to the byte", async () => {
    const file = await upload(box.appliance, noise(10 * MIB) as Uint8Array<ArrayBuffer>);
    const result = await shell("cat /data & cat /data >&2; wait", {
      files: { "/data": { uuid: file } },
      truncate_output_at: 10 * MIB,
    });
    for (const stream of [result.stdout, result.stderr]) {
      expect(stream.truncated).toBe(false);
      expect(sha256(bytesOf(stream))).toBe(sha256(noise(10 * MIB)));
    }
  });

  // spec: instances.truncate_output_at, output.truncated
  test.concurrent("truncate_output_at is exact to the byte, for each stream separately", async () => {
    const command = "printf 12345; printf 123456 >&2";
    const [at5, at6, at0] = await Promise.all([5, 6, 0].map((limit) => shell(command, { truncate_output_at: limit })));
    const kept = (result: typeof at5) => [result?.stdout, result?.stderr].map((out) => [out?.content, out?.truncated]);
    expect(kept(at5)).toEqual([
      ["12345", false],
      ["12345", true],
    ]);
    expect(kept(at6)).toEqual([
      ["12345", false],
      ["123456", false],
    ]);
    expect(kept(at0)).toEqual([
      ["", true],
      ["", true],
    ]);
  });

  // spec: instances.truncate_output_at
  test.concurrent("the default limit is 1 MiB; the rest is drained, so that the command can end", async () => {
    const result = await shell(`head -c ${MIB} /dev/zero; head -c ${MIB + 1} /dev/zero >&2; echo end > /dev/null`);
    expect([result.stdout.content.length, result.stdout.truncated]).toEqual([MIB, false]);
    expect([result.stderr.content.length, result.stderr.truncated]).toEqual([MIB, true]);
    const flood = await shell("head -c 30000000 /dev/zero; exit 3", { truncate_output_at: 10 });
    expect(flood).toMatchObject({ exit_code: 3, out: "\0".repeat(10), stdout: { truncated: true } });
  });

  test.concurrent("a truncation within a character gives base64, not broken text", async () => {
    const result = await shell("printf 'aä'", { truncate_output_at: 2 });
    expect(result.stdout).toEqual({
      content: Buffer.from([0x61, 0xc3]).toString("base64"),
      encoding: "base64",
      truncated: true,
    });
  });

  test.concurrent("a command that closes its outputs early continues, and its exit code counts", async () => {
    const one = await shell("exec >&-; sleep 1; echo late >&2; exit 3");
    expect(one).toMatchObject({ exit_code: 3, out: "", err: "late\n" });
    const both = await shell("exec >&- 2>&-; sleep 1; exit 6");
    expect(both).toMatchObject({ exit_code: 6, out: "", err: "", timed_out: false });
  });
});

describe("processes that a command leaves behind", () => {
  test.concurrent("do not delay the result, whether they hold the output open or not", async () => {
    const results = await Promise.all([
      shell("sleep 300 & echo done"),
      shell("(setsid sh -c 'exec sleep 300 >/dev/null 2>&1 </dev/null' &) ; echo done"),
      shell("(while :; do echo more; done) & echo done; exit 9", { truncate_output_at: 5 }),
    ]);
    expect(results.map(({ exit_code, timed_out }) => [exit_code, timed_out])).toEqual([
      [0, false],
      [0, false],
      [9, false],
    ]);
    expect(results.slice(0, 2).map(({ out }) => out)).toEqual(["done\n", "done\n"]);
  });

  test.concurrent("can still write output for 200 ms", async () => {
    // It waits for the end of the command without starting a program, which takes time on a busy host.
    const late = "(while kill -0 $$ 2>/dev/null; do :; done; echo late) & echo early";
    const outs = new Set<string>();
    for (let attempt = 0; attempt < 5 && !outs.has("early\nlate\n"); attempt++) outs.add((await shell(late)).out);
    expect(outs).toContain("early\nlate\n");
  });

  test.concurrent("have ended before the files are captured: the image has no partial write of them", async () => {
    const operation = await box.appliance.run(
      box.image,
      "(while :; do date >> /root/log; done) & until [ -s /root/log ]; do sleep 0.1; done; echo ok > /root/ok",
    );
    expect(operation.status).toBe("SUCCESS");
    const { image: captured } = operation.result as unknown as { image: string };
    const again = await shell("cat /root/ok; tail -c 1 /root/log | od -c | head -1", { image: captured });
    expect(again.out).toMatch(/^ok\n0000000 +\\n/);
  });
});
