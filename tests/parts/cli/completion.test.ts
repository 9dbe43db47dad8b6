import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { COMMANDS } from "../../../src/cli/commands.ts";
import { configTemplate } from "../../../src/cli/config/config-template.ts";
import { loadConfig } from "../../../src/config/config.ts";
import { OPERATION_KINDS } from "../../../src/domain/operation.ts";
import { run } from "../../../src/system/exec.ts";
import { cli } from "../../support/cli/cli.ts";

const directory = await mkdtemp(join(tmpdir(), "coppice-completion-"));
const script = (shell: string): string => join(directory, shell);
beforeAll(async () => {
  for (const shell of ["bash", "zsh", "fish"]) {
    await writeFile(script(shell), (await cli(["completion", shell])).stdout);
  }
});
afterAll(() => rm(directory, { recursive: true }));

/** The completions that bash offers for the last of these words. */
async function offered(...words: string[]): Promise<string[]> {
  const code = `source "$0"; COMP_WORDS=(coppice "$@"); COMP_CWORD=$#; _coppice; printf '%s\\n' "\${COMPREPLY[@]}"`;
  const argv = ["bash", "--norc", "-c", code, script("bash"), ...words];
  const { stdout } = await run({ argv, timeoutMs: 10_000, cwd: directory });
  return Buffer.from(stdout)
    .toString()
    .split("\n")
    .filter((word) => word !== "")
    .sort();
}

describe("completion", () => {
  test("bash offers every command, group and option", async () => {
    expect(await offered("")).toEqual(
      [...new Set([...COMMANDS.map(({ name }) => name.split(" ")[0] ?? ""), "help"])].sort(),
    );
    expect(await offered("tok")).toEqual(["token"]);
    const ofOp = COMMANDS.flatMap(({ name }) => /^op (.*)/.exec(name)?.[1] ?? []).sort();
    expect(ofOp).toContain("cancel");
    expect(await offered("op", "")).toEqual(ofOp);
    expect(await offered("e2b", "template", "b")).toEqual(["base"]);
    expect(await offered("help", "im")).toEqual(["image"]);
    expect(await offered("help", "op", "")).toEqual(ofOp);
    for (const { name, options } of COMMANDS) {
      const flags = Object.keys(options).map((option) => `--${option}`);
      expect(await offered(...name.split(" "), "--")).toEqual(flags.sort());
    }
  });

  test("bash offers the values of options", async () => {
    expect(await offered("op", "ls", "--kind", "")).toEqual([...OPERATION_KINDS].sort());
    expect(await offered("serve", "--vm-emulation", "")).toEqual(["allow", "never"]);
    expect(await offered("serve", "--listen-insecure", "t")).toEqual(["true"]);
    expect(await offered("completion", "f")).toEqual(["fish"]);
    expect(await offered("token", "create", "--scope", "images:re")).toEqual(["images:read"]);
  });

  test("bash offers files for options that take one", async () => {
    const files = ["bash", "fish", "zsh"];
    expect(await offered("serve", "--config", "")).toEqual(files);
    expect(await offered("serve", "--listen-tls-cert", "")).toEqual(files);
    expect(await offered("image", "save", "x", "-o", "")).toEqual(files);
  });

  test.each(["bash", "zsh", "fish"])("%s can read its script", async (shell) => {
    const { stderr } = await run({ argv: [shell, "-n", script(shell)], timeoutMs: 10_000 });
    expect(stderr).toBe("");
  });

  test("fish offers options with their descriptions", async () => {
    const begun = ["run --dispos", "image imp", "op ls --kind ", "completion z", "help im"];
    const asked = begun.map((line) => `complete -C 'coppice ${line}'`);
    const code = [`source ${script("fish")}`, ...asked].join("; ");
    const { stdout } = await run({ argv: ["fish", "--no-config", "-c", code], timeoutMs: 10_000 });
    const lines = Buffer.from(stdout).toString();
    expect(lines).toContain("--disposable\t");
    expect(lines).toContain("import\timport an image");
    const words = lines.split("\n").map((line) => line.split("\t")[0]);
    expect(words).toEqual(expect.arrayContaining(["image_import", "instance", "zsh", "image"]));
  });

  test("an unknown shell is wrong usage", async () => {
    expect(await cli(["completion", "tcsh"])).toMatchObject({ code: 2 });
  });
});

describe("the installed configuration file", () => {
  const load = async (text: string) => {
    const file = join(directory, "config.toml");
    await writeFile(file, text);
    return loadConfig({ environment: {}, flags: {}, file });
  };
  const defaults = loadConfig({ environment: { COPPICE_CONFIG: "/dev/null" }, flags: {} });

  test("sets nothing", async () => {
    expect(await load(configTemplate())).toEqual(defaults);
  });

  test("lists every setting with its default", async () => {
    const uncommented =
      configTemplate()
        .replaceAll(/^# (?=[a-z_]+ = )/gm, "")
        .split("\n# [registries.hosts")[0] ?? "";
    expect(uncommented.match(/^[a-z_]+ = /gm)?.length).toBeGreaterThan(20);
    expect(await load(uncommented)).toEqual(defaults);
  });

  test("has a valid example of a registry", async () => {
    const example = configTemplate().split("\n# [registries.hosts")[1] ?? "";
    const text = `[registries.hosts${example}`.replaceAll(/^# (?=[a-z_]+ = )/gm, "");
    expect(Object.keys((await load(text)).registries.hosts)).toEqual(["registry.lan:5000"]);
  });
});
