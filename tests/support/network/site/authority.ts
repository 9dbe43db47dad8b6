import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../../../src/system/exec.ts";
import { scratchDirectory } from "../../../../src/system/scratch.ts";

const OPENSSL_MS = 30_000;
const KIND = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];

/** A certificate for names, and the authority that signed it, all in PEM. */
export interface Certified {
  readonly authority: string;
  readonly certificate: string;
  readonly key: string;
}

/** Creates an authority, and a certificate of it for these names. */
export async function certify(names: readonly string[]): Promise<Certified> {
  await using scratch = await scratchDirectory(tmpdir(), "authority-");
  const at = (name: string): string => join(scratch.path, name);
  const request = async (...args: string[]): Promise<void> => {
    await run({ argv: ["openssl", "req", "-x509", ...KIND, ...args], timeoutMs: OPENSSL_MS });
  };
  await request("-subj", "/CN=authority of the tests", "-keyout", at("ca.key"), "-out", at("ca.crt"));
  const alternatives = `subjectAltName=${names.map((name) => `DNS:${name}`).join(",")}`;
  const usage = ["-addext", alternatives, "-addext", "basicConstraints=critical,CA:false"];
  const signed = ["-CA", at("ca.crt"), "-CAkey", at("ca.key"), "-keyout", at("key"), "-out", at("crt")];
  await request("-subj", "/CN=test", ...usage, ...signed);
  const read = async (name: string): Promise<string> => await Bun.file(at(name)).text();
  return { authority: await read("ca.crt"), certificate: await read("crt"), key: await read("key") };
}
