import { basename } from "node:path";
import { given } from "../../../domain/given.ts";
import { bytesOfSize } from "../../../domain/text/quantities.ts";
import { CliError } from "../../command.ts";
import { type Project, type ProjectSource, sandboxNameOf } from "./project.ts";
import { Values } from "./values.ts";

/** Settings by which a project builds its image, or needs several containers. */
const REFUSED: Readonly<Record<string, string>> = {
  build: "builds its image from a Dockerfile",
  dockerFile: "builds its image from a Dockerfile",
  dockerComposeFile: "needs the containers of a Compose file",
};
/** Settings that have no effect here, with what a person should know. */
const IGNORED: Readonly<Record<string, string>> = {
  features: "features are not installed: import an image that has them",
  mounts: "mounts are left out: a sandbox has no files of this machine but copies",
  workspaceMount: "the workspace is copied, not mounted",
  runArgs: "arguments of docker run have no effect",
  privileged: "privileged has no effect: programs have a machine of their own",
  capAdd: "capAdd has no effect: programs have a machine of their own",
  securityOpt: "securityOpt has no effect: programs have a machine of their own",
  initializeCommand: "initializeCommand is not run: it is for this machine",
};
/** The steps of a container that was created, in their order. */
const CREATED = ["onCreateCommand", "updateContentCommand", "postCreateCommand"] as const;

/** The project of a devcontainer.json. @throws CliError */
export function readDevcontainer({ file, text, directory, environment }: ProjectSource): Project {
  const raw = new Values(file, parsed(file, text));
  const refused = Object.keys(REFUSED).find((name) => raw.raw(name) !== undefined);
  if (refused !== undefined) {
    throw new CliError(
      `${file}: ${refused} ${REFUSED[refused]}, which coppice does not do; build and push the image elsewhere, and name ` +
        "it as image, or run coppice up IMAGE",
    );
  }
  const base = basename(directory);
  const outside = { environment, local: directory, base, container: {} };
  const target = substituted(raw.text("workspaceFolder") ?? `/workspaces/${base}`, { ...outside, target: "" });
  const containerEnv = replaced(raw.variables("containerEnv") ?? {}, { ...outside, target });
  const scope = { ...outside, target, container: containerEnv };
  const remoteEnv = Object.entries(raw.variables("remoteEnv") ?? {});
  const ofImage = remoteEnv.filter(([, variable]) => needsImage(variable, containerEnv)).map(([name]) => name);
  const own = Object.fromEntries(remoteEnv.filter(([name]) => !ofImage.includes(name)));
  const env = { ...containerEnv, ...replaced(own, scope) };
  const values = new Values(file, deepReplaced(parsed(file, text), scope));
  const notes = Object.keys(IGNORED).flatMap((name) => (isSet(raw.raw(name)) ? [IGNORED[name] ?? ""] : []));
  for (const name of ofImage) notes.push(`remoteEnv ${name} needs a variable of the image, and is left out`);
  const elsewhere = (entry: string) => void notes.push(`port ${entry} is on another host, and left out`);
  const ports = [...values.ports("forwardPorts", elsewhere), ...values.ports("appPort", elsewhere)];
  return {
    file,
    directory,
    image: values.text("image") ?? null,
    name: sandboxNameOf(base),
    request: {
      cwd: target,
      ...(Object.keys(env).length === 0 ? {} : { env }),
      ...given({ user: values.text("remoteUser") ?? values.text("containerUser"), resources: resourcesOf(values) }),
    },
    target,
    ports: [...new Set(ports)],
    created: CREATED.flatMap((name) => values.step(name)),
    started: values.step("postStartCommand"),
    served: values.step("postAttachCommand"),
    notes,
  };
}

/** JSON with comments and trailing commas. @throws CliError */
function parsed(file: string, text: string): unknown {
  try {
    return Bun.JSONC.parse(text);
  } catch (error) {
    throw new CliError(`${file} is not JSON with comments: ${(error as Error).message}`);
  }
}

/** False for what has no effect anyway: absent, false, or empty. */
function isSet(value: unknown): boolean {
  if (value === undefined || value === null || value === false || value === "") return false;
  return typeof value !== "object" || Object.keys(value).length > 0;
}

/** The values of the variables of a file. */
interface Scope {
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly local: string;
  readonly base: string;
  readonly target: string;
  readonly container: Readonly<Record<string, string>>;
}

/** The text with the values of its variables, such as `${localEnv:HOME}`; other `${...}` are for the shell, and stay. */
function substituted(text: string, { environment, local, base, target, container }: Scope): string {
  return text.replaceAll(/\$\{([A-Za-z]+)(?::([^:}]*)(?::([^}]*))?)?\}/g, (whole, kind, name = "", fallback = "") => {
    switch (kind) {
      case "localEnv":
      case "env":
        return environment[name] ?? fallback;
      case "containerEnv":
        return container[name] ?? fallback;
      case "localWorkspaceFolder":
        return local;
      case "localWorkspaceFolderBasename":
        return base;
      case "containerWorkspaceFolder":
        return target;
      case "containerWorkspaceFolderBasename":
        return basename(target);
      default:
        return whole;
    }
  });
}

/** Whether a text needs a variable that only the image has. */
function needsImage(text: string, own: Readonly<Record<string, string>>): boolean {
  const names = [...text.matchAll(/\$\{containerEnv:([^:}]*)\}/g)].map(([, name = ""]) => name);
  return names.some((name) => own[name] === undefined);
}

function replaced(variables: Readonly<Record<string, string>>, scope: Scope): Record<string, string> {
  return Object.fromEntries(Object.entries(variables).map(([name, text]) => [name, substituted(text, scope)]));
}

/** The value with the variables of all of its texts replaced. */
function deepReplaced(value: unknown, scope: Scope): unknown {
  if (typeof value === "string") return substituted(value, scope);
  if (Array.isArray(value)) return value.map((item) => deepReplaced(item, scope));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, deepReplaced(item, scope)]));
}

/** The resources of hostRequirements, as far as a sandbox has them. */
function resourcesOf(values: Values) {
  const raw = values.raw("hostRequirements");
  if (typeof raw !== "object" || raw === null) return undefined;
  const { cpus, memory } = raw as { readonly cpus?: unknown; readonly memory?: unknown };
  const bytes = typeof memory === "string" ? bytesOfSize(memory.replace(/b$/i, "").toUpperCase()) : null;
  const chosen = given({ vcpus: typeof cpus === "number" ? cpus : undefined, memory_bytes: bytes });
  return Object.keys(chosen).length === 0 ? undefined : chosen;
}
