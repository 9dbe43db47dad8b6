import { basename } from "node:path";
import type { SandboxRequest } from "../../../client/types.ts";
import { given } from "../../../domain/given.ts";
import { bytesOfSize, DURATION_FORM, SIZE_FORM, secondsOfDuration } from "../../../domain/text/quantities.ts";
import { CliError } from "../../command.ts";
import { networkField } from "../../running/network.ts";
import { type Project, type ProjectSource, sandboxNameOf } from "./project.ts";
import { Values } from "./values.ts";

const NAMES = [
  ...["name", "image", "env", "cwd", "user", "timeout", "idle", "on_timeout", "network", "cpus", "memory", "disk"],
  ...["copy_to", "ports", "public_ports", "on_create", "on_start", "serve"],
];

/** The project of a coppice.toml. @throws CliError */
export function readManifest({ file, text, directory }: ProjectSource): Project {
  let parsed: unknown;
  try {
    parsed = Bun.TOML.parse(text);
  } catch (error) {
    throw new CliError(`${file} is not TOML: ${(error as Error).message}`);
  }
  const values = new Values(file, parsed);
  const unknown = values.names.find((name) => !NAMES.includes(name));
  if (unknown !== undefined)
    throw new CliError(`${file}: there is no setting ${unknown}; there are ${NAMES.join(", ")}`);
  const refuse = (entry: string): never => {
    throw values.wrong("ports", `has ${entry}, which is on another host`);
  };
  const publicPorts = values.ports("public_ports", refuse);
  return {
    file,
    directory,
    image: values.text("image") ?? null,
    name: sandboxNameOf(values.text("name") ?? basename(directory)),
    request: {
      ...given({ env: values.variables("env"), cwd: values.text("cwd"), user: values.text("user") }),
      ...given({ timeout: duration(values, "timeout"), idle_timeout: duration(values, "idle") }),
      ...given({ on_timeout: onTimeout(values), network: network(values), resources: resources(values) }),
      ...(publicPorts.length === 0 ? {} : { public_ports: publicPorts }),
    },
    target: values.text("copy_to") ?? null,
    ports: [...new Set([...values.ports("ports", refuse), ...publicPorts])],
    created: values.step("on_create"),
    started: values.step("on_start"),
    served: values.step("serve"),
    notes: [],
  };
}

function duration(values: Values, name: string): number | undefined {
  const raw = values.raw(name);
  if (raw === undefined) return undefined;
  const seconds = secondsOfDuration(String(raw));
  if (seconds === null || seconds < 1) throw values.wrong(name, `must be ${DURATION_FORM}`);
  return seconds;
}

function size(values: Values, name: string): number | undefined {
  const raw = values.raw(name);
  if (raw === undefined) return undefined;
  const bytes = bytesOfSize(String(raw));
  if (bytes === null || bytes < 1) throw values.wrong(name, `must be ${SIZE_FORM}`);
  return bytes;
}

function onTimeout(values: Values): SandboxRequest["on_timeout"] {
  const text = values.text("on_timeout");
  if (text === undefined || text === "pause" || text === "end") return text;
  throw values.wrong("on_timeout", "must be pause or end");
}

/** The network of a list of rules, such as `["pypi.example:443"]`. */
function network(values: Values): SandboxRequest["network"] {
  const rules = values.texts("network");
  if (rules === undefined) return undefined;
  const options = { network: rules.map((rule) => `allow=${rule}`) };
  return rules.length === 0 ? "none" : networkField(options).network;
}

function resources(values: Values): SandboxRequest["resources"] {
  const chosen = given({
    vcpus: values.integer("cpus"),
    memory_bytes: size(values, "memory"),
    disk_bytes: size(values, "disk"),
  });
  return Object.keys(chosen).length === 0 ? undefined : chosen;
}
