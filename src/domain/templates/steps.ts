import type { Variables } from "../image-defaults.ts";

/** Largest number of steps of a build. */
export const BUILD_STEPS_COUNT_MAX = 1000;
/** Name of the step that brings the image on which the others work, and of the last one. Those between are numbered from 1. */
export const BASE_STEP = "base";
export const FINALIZE_STEP = "finalize";

/** A step of a build. `force`: it and the steps after it are done again, whatever was kept of them. */
export type BuildStep = { readonly force: boolean } & (
  | { readonly kind: "run"; readonly command: string /** null: that of the state */; readonly user: string | null }
  | CopyStep
  | { readonly kind: "env"; readonly variables: Variables }
  | { readonly kind: "workdir"; readonly path: string }
  /** a user that the guest does not have is added */
  | { readonly kind: "user"; readonly name: string }
);

/** A step that copies files of an uploaded archive. */
export interface CopyStep {
  readonly kind: "copy";
  /** path in the archive, which may end in a pattern: the archive has only what matches */
  readonly source: string;
  /** in the guest; relative to the working directory */
  readonly target: string;
  /** `USER` or `USER:GROUP`; null: that of the state */
  readonly owner: string | null;
  /** octal digits; null: that of the archive */
  readonly mode: string | null;
  /** name of the archive: a hash of the client */
  readonly filesHash: string;
}

/** The part of a build, besides the files, that each step passes on to the next. */
export interface BuildState {
  readonly user: string;
  /** absolute; null: the home of the user */
  readonly cwd: string | null;
  /** variables of the image and of earlier steps */
  readonly env: Variables;
}

/** Everything on which the files after a step depend. */
export interface StepOrigin {
  /** the top layer of the image on which it works */
  readonly layerId: string;
  readonly state: BuildState;
}

/** The key under which the image after a step is kept: a SHA-256 in hexadecimal. */
export function stepKey(step: BuildStep, { layerId, state }: StepOrigin): string {
  const { force: _force, ...what } = step;
  const env = Object.entries(state.env).sort(([one], [other]) => (one < other ? -1 : 1));
  const parts = [KEY_FORM, layerId, Object.entries(what).sort(), state.user, state.cwd, env];
  return new Bun.CryptoHasher("sha256").update(JSON.stringify(parts)).digest("hex");
}

/** Changes when the same step would make other files. */
const KEY_FORM = 1;

/** One line about a step, as the author of a build knows it. */
export function stepText(step: BuildStep): string {
  switch (step.kind) {
    case "run":
      return `RUN ${step.command}`;
    case "copy":
      return `COPY ${step.source} ${step.target}`;
    case "env":
      // Values may be secret.
      return `ENV ${Object.keys(step.variables).join(" ")}`;
    case "workdir":
      return `WORKDIR ${step.path}`;
    case "user":
      return `USER ${step.name}`;
  }
}

/** The path of an archive before the first part with a pattern, without a slash at its end; empty: its root. */
export function plainSource(source: string): { readonly path: string; readonly isPattern: boolean } {
  const parts = source.split("/").filter((part) => part !== "" && part !== ".");
  const at = parts.findIndex((part) => /[*?[\]{}]/.test(part));
  return { path: (at === -1 ? parts : parts.slice(0, at)).join("/"), isPattern: at !== -1 };
}

/** A path of a step, from the working directory; null in it stands for the root. */
export function absolutePath(path: string, cwd: string | null): string {
  const parts: string[] = [];
  for (const part of (path.startsWith("/") ? path : `${cwd ?? ""}/${path}`).split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return `/${parts.join("/")}`;
}
