import { REVISION, VERSION } from "../version.ts";
import { embeddedManifest } from "../vm/assets.ts";
import { command, expectPositionals, JSON_OPTION } from "./command.ts";

export const versionCommand = command({
  name: "version",
  summary: "show version, revision and parts of this build",
  synopsis: "[--json]",
  options: JSON_OPTION,
  async run({ options, positionals, io }) {
    expectPositionals(positionals);
    const assets = (await embeddedManifest())?.hash ?? null;
    const facts = { version: VERSION, revision: REVISION, bun: Bun.version, api: "v1", guest_assets: assets };
    const text = `coppice ${VERSION} (${REVISION}), Bun ${Bun.version}, guest assets ${assets?.slice(0, 12) ?? "of source"}\n`;
    await io.stdout(options.json === true ? `${JSON.stringify(facts)}\n` : text);
    return 0;
  },
});
