import type { Sandbox, SandboxRequest } from "../../../client/types.ts";
import { defined, type FormResult, TypedValues, typedText } from "../../parts/form/values.ts";
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

/** Fields of the API that the form has. */
export const FORM_FIELDS: ReadonlySet<string> = new Set([
  ...["image", "name", "timeout", "idle_timeout", "network"],
  ...["resources.vcpus", "resources.memory_bytes", "resources.disk_bytes"],
]);

/** The request of a form, or the fields that cannot be part of one. The appliance checks the values. */
export function requestOf(form: SandboxForm): FormResult<SandboxRequest> {
  const typed = new TypedValues();
  const parsed = rulesOf(form.rules);
  const rules = "problem" in parsed ? [] : parsed.rules;
  if ("problem" in parsed) typed.problems["network"] = parsed.problem;
  return typed.result({
    image: form.image.trim(),
    on_timeout: form.onTimeout,
    auto_resume: form.autoResume,
    ...defined({
      name: typedText(form.name),
      timeout: typed.duration("timeout", form.timeout),
      idle_timeout: typed.duration("idle_timeout", form.idle),
      resources: typed.resources(form),
      network: rules.length > 0 ? { allow: rules } : undefined,
    }),
  } as SandboxRequest);
}
