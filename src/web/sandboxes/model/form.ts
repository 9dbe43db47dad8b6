import type { Sandbox, SandboxRequest } from "../../../client/types.ts";
import { bytesOfSize, DURATION_FORM, SIZE_FORM, secondsOfDuration } from "../../../domain/text/quantities.ts";
import { rulesOf } from "../../run/form/network-rules.ts";

/** The values of the form of a sandbox, as typed: they may be invalid. */
export interface SandboxForm {
  /** uuid, or `tag:` and a tag */
  readonly image: string;
  readonly name: string;
  readonly timeout: string;
  readonly onTimeout: Sandbox["on_timeout"];
  readonly idle: string;
  readonly autoResume: boolean;
  readonly vcpus: string;
  readonly memory: string;
  readonly disk: string;
  /** one rule a line; empty: no network */
  readonly rules: string;
}

export const EMPTY_FORM: SandboxForm = {
  image: "",
  name: "",
  timeout: "",
  onTimeout: "pause",
  idle: "",
  autoResume: true,
  vcpus: "",
  memory: "",
  disk: "",
  rules: "",
};

/** Mistakes, by the field of the API. */
export type FieldProblems = Readonly<Record<string, string>>;

/** Fields of the API that the form has. */
export const FORM_FIELDS: ReadonlySet<string> = new Set([
  ...["image", "name", "timeout", "idle_timeout", "network"],
  ...["resources.vcpus", "resources.memory_bytes", "resources.disk_bytes"],
]);

/** The request of a form, or the fields that cannot be part of one. The appliance checks the values. */
export function requestOf(
  form: SandboxForm,
): { readonly request: SandboxRequest } | { readonly problems: FieldProblems } {
  const problems: Record<string, string> = {};
  const fields: Record<string, unknown> = {};
  const resources: Record<string, number> = {};
  const number = (text: string, read: (text: string) => number | null, form_: string, field: string) => {
    if (text.trim() === "") return undefined;
    const value = read(text);
    if (value === null) problems[field] = `${field} must be ${form_}`;
    return value ?? undefined;
  };
  const put = (into: Record<string, unknown>, name: string, value: unknown) => {
    if (value !== undefined && value !== "") into[name] = value;
  };
  put(fields, "name", form.name.trim());
  put(fields, "timeout", number(form.timeout, secondsOfDuration, DURATION_FORM, "timeout"));
  put(fields, "idle_timeout", number(form.idle, secondsOfDuration, DURATION_FORM, "idle_timeout"));
  put(resources, "vcpus", number(form.vcpus, wholeNumber, "a number", "resources.vcpus"));
  put(resources, "memory_bytes", number(form.memory, bytesOfSize, SIZE_FORM, "resources.memory_bytes"));
  put(resources, "disk_bytes", number(form.disk, bytesOfSize, SIZE_FORM, "resources.disk_bytes"));
  if (Object.keys(resources).length > 0) fields["resources"] = resources;
  const parsed = rulesOf(form.rules);
  if ("problem" in parsed) problems["network"] = parsed.problem;
  else if (parsed.rules.length > 0) fields["network"] = { allow: parsed.rules };
  if (Object.keys(problems).length > 0) return { problems };
  const { onTimeout, autoResume } = form;
  return { request: { image: form.image.trim(), on_timeout: onTimeout, auto_resume: autoResume, ...fields } };
}

function wholeNumber(text: string): number | null {
  return /^\d{1,9}$/.test(text.trim()) ? Number(text) : null;
}

/** The field of the form for a field of the API. */
export function fieldOf(field: unknown): string {
  if (typeof field !== "string") return "";
  return field.startsWith("resources.") ? field : (/^[a-z_]+/.exec(field)?.[0] ?? "");
}
