import type { SpawnRequest } from "../../../client/types.ts";
import { sizeText } from "../../../domain/text/quantities.ts";
import { ruleText } from "./network-rules.ts";
import { quoted, shellLine } from "./shell-words.ts";

/** A request, with the names that its files have on the machine of the user. */
export interface LocalRequest {
  readonly request: SpawnRequest;
  /** local names of the files, by their paths in the sandbox; absent for files of an earlier run */
  readonly names: Readonly<Record<string, string>>;
}

/** The run as a `coppice run` command, on several lines if it is long, and a list of the fields that have no option. */
export function coppiceRun({ request, names }: LocalRequest): {
  readonly text: string;
  readonly unsaid: readonly string[];
} {
  const { image, command, args = [], shell, env = {}, files = {}, stdin, network, resources = {} } = request;
  const options: string[][] = [["--image", image]];
  const option = (name: string, value: string | number | undefined): void => {
    if (value !== undefined && value !== "") options.push([`--${name}`, String(value)]);
  };
  const size = (name: string, bytes: number | undefined): void => option(name, bytes && sizeText(bytes));
  option("cwd", request.cwd);
  option("uid", request.uid);
  option("gid", request.gid);
  option("hostname", request.hostname);
  option("timeout", request.timeout);
  option("cpus", resources.vcpus);
  size("memory", resources.memory_bytes);
  size("disk", resources.disk_bytes);
  size("output-limit", request.truncate_output_at);
  for (const [name, value] of Object.entries(env)) {
    if (!(request.pty !== undefined && name === "TERM")) option("env", `${name}=${value}`);
  }
  for (const path of Object.keys(files)) option("file", `${names[path] ?? baseName(path)}:${path}`);
  if (typeof network === "object") {
    option("network", network.record === true ? "record" : `allow=${(network.allow ?? []).map(ruleText).join(",")}`);
    if (network.tls === "any") option("network-tls", "any");
  }
  if (request.disposable === true) options.push(["--disposable"]);
  option("tag", request.tag);
  if (request.pty !== undefined) options.push([request.stdin_open === true ? "-it" : "-t"]);
  else if (request.stdin_open === true) options.push(["-i"]);
  if (shell === true) options.push(["--shell"]);
  const words = ["coppice", "run"];
  const last = shellLine(["--", command, ...args]);
  const text = joined([shellLine(words), ...options.map(shellLine), last]);
  const unsaid = [
    ...(Object.values(files).some((file) => (file.mode ?? "0644") !== "0644") ? ["modes: files keep theirs"] : []),
    ...(Object.keys(files).some((path) => names[path] === undefined)
      ? ["files that were uploaded for another run"]
      : []),
  ];
  return { text: stdin === undefined ? text : `${producer(stdin)} | ${text}`, unsaid };
}

/** The command that writes the standard input of a request. */
function producer(stdin: string): string {
  const encoded = stdin.startsWith("base64:");
  return encoded ? `${shellLine(["printf", "%s", stdin.slice(7)])} | base64 -d` : shellLine(["printf", "%s", stdin]);
}

/** The run as a curl command. @param url of the appliance, without a path */
export function curlRun({ request }: Pick<LocalRequest, "request">, url: string): string {
  return joined([
    "curl -sS --fail-with-body",
    // The user's shell inserts the token.
    '-H "Authorization: Bearer $COPPICE_TOKEN"',
    quoted(`${url}/v1/instances`),
    `--json ${quoted(JSON.stringify(request, null, 2))}`,
  ]);
}

/** Longest command that stays on one line, in `characters`. */
const LINE_CHARACTERS_MAX = 76;

function joined(parts: readonly string[]): string {
  const line = parts.join(" ");
  return line.length <= LINE_CHARACTERS_MAX && !line.includes("\n") ? line : parts.join(" \\\n  ");
}

function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}
