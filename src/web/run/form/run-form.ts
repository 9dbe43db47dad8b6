import { toBase64 } from "../../../client/base64.ts";
import type { InstanceOperationRequest, SpawnRequest } from "../../../client/types.ts";
import { durationText, sizeText } from "../../../domain/text/quantities.ts";
import { defined, type FormResult, TypedValues, typedText } from "../../parts/form/values.ts";
import { type Rule, rulesOf, ruleText } from "./network-rules.ts";
import { shellLine, shellWords } from "./shell-words.ts";

/** A file that goes into the sandbox. */
export interface PlacedFile {
  /** of the entry in the form */
  readonly key: number;
  /** the local file; null: it was uploaded for another run */
  readonly name: string | null;
  /** absolute, in the sandbox */
  readonly path: string;
  /** four octal digits */
  readonly mode: string;
  /** null: the upload has not ended */
  readonly uuid: string | null;
}

export interface Variable {
  readonly name: string;
  readonly value: string;
}

/** The values of the form of a run, as typed: they may be invalid. */
export interface RunForm {
  /** uuid, or `tag:` and a tag */
  readonly image: string;
  /** true: `line` is an expression of a shell; false: a program and its arguments, quoted as for a shell */
  readonly isShell: boolean;
  readonly line: string;
  readonly cwd: string;
  readonly uid: string;
  readonly gid: string;
  readonly hostname: string;
  readonly variables: readonly Variable[];
  readonly files: readonly PlacedFile[];
  readonly stdin: string;
  readonly isStdinOpen: boolean;
  readonly hasTerminal: boolean;
  readonly vcpus: string;
  readonly memory: string;
  readonly disk: string;
  readonly timeout: string;
  readonly output: string;
  readonly network: "none" | "allow" | "record";
  /** one rule a line */
  readonly rules: string;
  readonly isTlsAny: boolean;
  readonly isDisposable: boolean;
  /** for the image of the result; empty: none */
  readonly tag: string;
}

export const EMPTY_FORM: RunForm = {
  image: "",
  isShell: true,
  line: "",
  cwd: "",
  uid: "",
  gid: "",
  hostname: "",
  variables: [],
  files: [],
  stdin: "",
  isStdinOpen: false,
  hasTerminal: false,
  vcpus: "",
  memory: "",
  disk: "",
  timeout: "",
  output: "",
  network: "none",
  rules: "",
  isTlsAny: false,
  isDisposable: false,
  tag: "",
};

/** Size of a terminal before the first attachment. */
const TERMINAL = { rows: 24, cols: 80 } as const;

/** The request of a form, or the fields that cannot be part of a request. The appliance checks the values. */
export function requestOf(form: RunForm): FormResult<SpawnRequest> {
  const typed = new TypedValues();
  const { problems } = typed;
  const env = variablesOf(form, problems);
  const request = {
    image: form.image.trim(),
    ...commandOf(form, problems),
    ...(env === undefined ? {} : { env }),
    ...defined({
      cwd: typedText(form.cwd),
      uid: typed.whole("uid", form.uid),
      gid: typed.whole("gid", form.gid),
      hostname: typedText(form.hostname),
      tag: typedText(form.tag),
      timeout: typed.duration("timeout", form.timeout),
      truncate_output_at: typed.size("truncate_output_at", form.output),
      stdin: form.stdin === "" ? undefined : stdinText(form.stdin),
      resources: typed.resources(form),
    }),
    ...(form.isStdinOpen ? { stdin_open: true } : {}),
    ...(form.hasTerminal ? { pty: TERMINAL } : {}),
    ...filesOf(form, problems),
    ...networkOf(form, problems),
    ...(form.isDisposable ? { disposable: true } : {}),
  };
  return typed.result(request as SpawnRequest);
}

function commandOf({ isShell, line }: RunForm, problems: Record<string, string>): object {
  if (isShell) return { command: line, shell: true };
  const parsed = shellWords(line);
  if ("problem" in parsed) {
    problems["command"] = parsed.problem;
    return {};
  }
  const [command = "", ...args] = parsed.words;
  return { command, ...(args.length === 0 ? {} : { args }) };
}

function variablesOf({ variables, hasTerminal }: RunForm, problems: Record<string, string>) {
  const named = variables.filter(({ name, value }) => name !== "" || value !== "");
  if (new Set(named.map(({ name }) => name)).size < named.length) problems["env"] = "env must name each variable once";
  // Programs read the kind of their terminal from TERM.
  const kind = hasTerminal && !named.some(({ name }) => name === "TERM") ? [["TERM", "xterm-256color"]] : [];
  const entries = [...kind, ...named.map(({ name, value }) => [name, value])];
  return entries.length === 0 ? undefined : Object.fromEntries(entries);
}

function filesOf({ files }: RunForm, problems: Record<string, string>): Pick<SpawnRequest, "files"> {
  if (files.length === 0) return {};
  if (new Set(files.map(({ path }) => path)).size < files.length) problems["files"] = "files must name each path once";
  const placed = files.flatMap(({ path, uuid, mode }) => (uuid === null ? [] : [[path, { uuid, mode }] as const]));
  return { files: Object.fromEntries(placed) };
}

function networkOf(form: RunForm, problems: Record<string, string>): { readonly network?: SpawnRequest["network"] } {
  if (form.network === "none") return {};
  const tls = form.isTlsAny ? { tls: "any" as const } : {};
  if (form.network === "record") return { network: { record: true, ...tls } };
  const parsed = rulesOf(form.rules);
  if ("problem" in parsed) {
    problems["network"] = parsed.problem;
    return {};
  }
  if (parsed.rules.length === 0) problems["network"] = "network needs at least one rule, such as example.org:443";
  return { network: { allow: parsed.rules as Rule[], ...tls } };
}

/** Encodes standard input as base64 if it is not ASCII, or begins with the prefix of base64. */
function stdinText(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: NUL is ASCII like any other character here.
  if (/^[\u0000-\u007f]*$/.test(text) && !text.startsWith("base64:")) return text;
  return `base64:${toBase64(new TextEncoder().encode(text))}`;
}

/** The form for the request of an instance, without values of variables and standard input, which are not stored. */
export function formOf(request: InstanceOperationRequest): RunForm {
  const { network, resources, pty } = request;
  const wish = typeof network === "object" ? network : null;
  return {
    ...EMPTY_FORM,
    image: request.image,
    isShell: request.shell === true && request.args.length === 0,
    line: request.shell === true && request.args.length === 0 ? request.command : shellLine(wordsFor(request)),
    cwd: request.cwd ?? "",
    uid: request.uid === 0 ? "" : String(request.uid),
    gid: request.gid === 0 ? "" : String(request.gid),
    hostname: request.hostname ?? "",
    variables: (request.env_names ?? []).filter((name) => name !== "TERM").map((name) => ({ name, value: "" })),
    files: Object.entries(request.files).map(([path, { uuid, mode = "0644" }], key) => ({
      key,
      name: null,
      path,
      mode,
      uuid,
    })),
    isStdinOpen: request.stdin_open,
    hasTerminal: pty !== undefined,
    vcpus: resources?.vcpus === undefined ? "" : String(resources.vcpus),
    memory: resources?.memory_bytes === undefined ? "" : sizeText(resources.memory_bytes),
    disk: resources?.disk_bytes === undefined ? "" : sizeText(resources.disk_bytes),
    timeout: request.timeout === undefined ? "" : durationText(request.timeout),
    output: request.truncate_output_at === undefined ? "" : sizeText(request.truncate_output_at),
    network: wish === null ? "none" : wish.record === true ? "record" : "allow",
    rules: (wish?.allow ?? []).map(ruleText).join("\n"),
    isTlsAny: wish?.tls === "any",
    isDisposable: request.disposable === true,
    tag: request.tag ?? "",
  };
}

/** The words of a command. A shell expression with arguments becomes a call of the shell, because the form has no such case. */
function wordsFor({ command, args, shell }: InstanceOperationRequest): string[] {
  return shell === true ? ["/bin/sh", "-c", command, "/bin/sh", ...args] : [command, ...args];
}
