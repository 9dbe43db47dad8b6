import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { openCgroupTree } from "../../src/cgroup/cgroup.ts";
import { timed } from "../../src/cli/bench/measure.ts";
import { openRegistryGate } from "../../src/network/registry-gate.ts";
import { erofsArgv } from "../../src/oci/base-disk.ts";
import { LAYOUT_TAG } from "../../src/oci/layout.ts";
import { runTool, type ToolBounds, type ToolCommand } from "../../src/oci/tool.ts";
import { UNPACK_RIGHTS, unpackArgv } from "../../src/oci/umoci.ts";
import { scratchDirectory } from "../../src/system/scratch.ts";
import { ToolNetwork } from "../../src/system/tool-network.ts";
import { builtAssets } from "../support/guests/vm.ts";
import type { Registry } from "../support/images/registry.ts";
import { testGate } from "../support/network/gate.ts";

/** Limits of a tool's cgroup, which are out of the way of these images. */
const GROUP_LIMITS = { memoryBytes: 1_073_741_824, pids: 512 };
const TOOL_MS = 300_000;

/** The three programs of an import, confined as the appliance confines them, and nothing else of an import. */
export interface BareImport extends AsyncDisposable {
  /** Time to make a disk of an image, in `milliseconds`. */
  measure(reference: string): Promise<number>;
}

/** @param parent directory for the files: how long it takes to make one depends on the directory */
export async function openBareImport(registry: Registry, parent: string): Promise<BareImport> {
  await using stack = new AsyncDisposableStack();
  const groups = stack.use(await openCgroupTree({ namespace: `coppice-bench-${process.pid}` }));
  const group = stack.use(await groups.create("import", GROUP_LIMITS));
  const network = stack.use(new ToolNetwork());
  const { gate } = stack.use(await testGate());
  const bounds = {
    launcher: builtAssets().launcher,
    timeoutMs: TOOL_MS,
    signal: new AbortController().signal,
    controlGroups: group.directories,
  };
  const owned = stack.move();
  return {
    async measure(reference) {
      await using directory = await scratchDirectory(parent, "bare-");
      using way = openRegistryGate({
        network,
        gate,
        settings: registry.settings,
        hosts: { [registry.host]: registry.settings },
      });
      const commands = await commandsOf(directory.path, reference, way);
      return await timed(() => inTurn(commands, bounds));
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

async function inTurn(commands: readonly ToolCommand[], bounds: ToolBounds): Promise<void> {
  for (const command of commands) await runTool(command, bounds);
}

async function commandsOf(
  directory: string,
  reference: string,
  gate: { readonly network: string; readonly environment: Readonly<Record<string, string>> },
): Promise<ToolCommand[]> {
  const at = (name: string) => join(directory, name);
  for (const name of ["pulled", "staging", "base"]) await mkdir(at(name));
  const [layout, staging] = [at("pulled/layout"), at("staging")];
  const copy = ["skopeo", "--insecure-policy", "--tmpdir", at("pulled"), "copy", "--quiet", "--src-tls-verify=false"];
  return [
    {
      argv: [...copy, "--src-no-creds", `docker://${reference}`, `oci:layout:${LAYOUT_TAG}`],
      env: { ...gate.environment, HOME: at("pulled"), TMPDIR: at("pulled"), XDG_RUNTIME_DIR: at("pulled") },
      cwd: at("pulled"),
      confinement: { readable: [], writable: [at("pulled")], network: gate.network },
    },
    {
      argv: unpackArgv({ layout, into: join(staging, "upper") }),
      cwd: at("pulled"),
      confinement: { readable: [layout], writable: [staging], network: null, ...UNPACK_RIGHTS },
    },
    {
      argv: erofsArgv({ staging, path: at("base/disk") }),
      confinement: { readable: [staging], writable: [at("base")], network: null, capabilities: ["dac_override"] },
    },
  ];
}
