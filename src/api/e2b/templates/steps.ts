import { SHA256_PATTERN } from "../../../domain/file.ts";
import { given } from "../../../domain/given.ts";
import type { BuildStep } from "../../../domain/templates/steps.ts";
import type { BuildFrom, BuildInput } from "../../../service/templates/start.ts";
import { E2bError } from "../errors.ts";
import type { BuildStart, Step } from "./schema.ts";

const hashExpression = new RegExp(SHA256_PATTERN);
const variableExpression = /^[A-Za-z_][A-Za-z0-9_]*$/;
const modeExpression = /^[0-7]{3,5}$/;
const ownerExpression = /^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?$/;

/** A build as the service takes it. @throws E2bError 400 for what is wrong or not offered */
export function buildInput(body: BuildStart, defaultUser: string): BuildInput {
  const { force, startCmd, readyCmd } = body;
  return {
    from: originOf(body),
    steps: (body.steps ?? []).map(stepOf),
    defaultUser,
    force: force ?? false,
    ...given({ startCmd: startCmd ?? undefined, readyCmd: readyCmd ?? undefined }),
  };
}

function originOf({ fromImage, fromTemplate, fromImageRegistry: registry }: BuildStart): BuildFrom {
  const [image, template] = [fromImage || null, fromTemplate || null];
  if (image === null && template !== null) return { kind: "template", reference: template };
  if (image === null || template !== null) throw wrong("fromImage or fromTemplate is required, and not both");
  const from = { kind: "image", reference: image } as const;
  if (registry == null) return from;
  const { type, username, password } = registry;
  if (type !== "registry") {
    throw wrong(`registries of type ${type} are not offered by this server: use a user and a password`);
  }
  if (!username || !password) throw wrong("fromImageRegistry needs username and password");
  return { ...from, credentials: { username, password } };
}

/** @throws E2bError 400 that names the step */
export function stepOf({ type, args: given, filesHash, force }: Step, index: number): BuildStep {
  const args = given ?? [];
  const name = type.toUpperCase();
  const what = (rule: string) => wrong(`step ${index + 1} (${name.slice(0, 32)}) ${rule}`);
  const [first = "", second = "", third = "", fourth = ""] = args;
  const common = { force: force ?? false };
  if (args.some((arg) => arg.includes("\0"))) throw what("must not contain NUL");
  switch (name) {
    case "RUN":
      if (first === "") throw what("needs a command");
      return { ...common, kind: "run", command: first, user: second === "" ? null : second };
    case "COPY": {
      if (first === "" || second === "") throw what("needs a source and a destination");
      if (first.startsWith("/") || first.split("/").includes("..")) throw what("has a source outside of its context");
      if (filesHash == null || !hashExpression.test(filesHash)) throw what("needs filesHash, a SHA-256 in hexadecimal");
      if (third !== "" && !ownerExpression.test(third)) throw what(`has no user '${third.slice(0, 100)}'`);
      if (fourth !== "" && !modeExpression.test(fourth)) throw what("has a mode that is not octal");
      const [owner, mode] = [third, fourth].map((text) => (text === "" ? null : text)) as [
        string | null,
        string | null,
      ];
      return { ...common, kind: "copy", source: first, target: second, owner, mode, filesHash };
    }
    case "ENV":
    case "ARG": {
      const names = args.filter((_, at) => at % 2 === 0);
      if (args.length % 2 !== 0 || !names.every((each) => variableExpression.test(each))) {
        throw what("needs names of variables, each with its value");
      }
      const variables = Object.fromEntries(names.map((each, at) => [each, args[2 * at + 1] ?? ""]));
      return { ...common, kind: "env", variables };
    }
    case "WORKDIR":
      if (first === "") throw what("needs a path");
      return { ...common, kind: "workdir", path: first };
    case "USER":
      if (first === "") throw what("needs the name of a user");
      return { ...common, kind: "user", name: first };
    default:
      throw what("is not known: RUN, COPY, ENV, WORKDIR and USER are");
  }
}

function wrong(message: string): E2bError {
  return new E2bError(400, message);
}
