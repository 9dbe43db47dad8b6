import { ApiError } from "../domain/errors.ts";
import { SHA256_PATTERN } from "../domain/file.ts";
import { UUID_PATTERN } from "../domain/ids.ts";
import { isSandboxName } from "../domain/sandbox.ts";

/** A parameter of a path. */
export interface PathParameter {
  readonly description: string;
  /** for the API description */
  readonly schema: { readonly [keyword: string]: string | number };
  /** the rest of the message for an invalid value, after the parameter's name */
  readonly rule: string;
  /** Returns the value in its canonical spelling; null when it is invalid. */
  readonly normalise: (value: string) => string | null;
}

const UUID = new RegExp(UUID_PATTERN);
const NUMBER = /^(?:0|[1-9]\d{0,8})$/;

const uuid = (description: string): PathParameter => ({
  description,
  schema: { type: "string", format: "uuid" },
  rule: "must be a UUID",
  normalise: (value) => (UUID.test(value) ? value.toLowerCase() : null),
});

const integer = (description: string, minimum: number, maximum: number): PathParameter => ({
  description,
  schema: { type: "integer", minimum, maximum },
  rule: `must be an integer from ${minimum} to ${maximum}`,
  normalise: (value) => (NUMBER.test(value) && Number(value) >= minimum && Number(value) <= maximum ? value : null),
});

const SHA256 = new RegExp(SHA256_PATTERN);
const sha256: PathParameter = {
  description: "hexadecimal SHA-256 of the content",
  schema: { type: "string", pattern: "^[0-9a-fA-F]{64}$" },
  rule: "must be 64 hexadecimal digits",
  normalise: (value) => (SHA256.test(value.toLowerCase()) ? value.toLowerCase() : null),
};

/** Beginning of the name of a sandbox in a path. */
const NAME_PREFIX = "name:";
const sandbox: PathParameter = {
  description: "id of the sandbox, or `name:` and its name",
  schema: { type: "string" },
  rule: "must be a UUID, or name: and the name of a sandbox",
  normalise: (value) => {
    if (UUID.test(value)) return value.toLowerCase();
    return value.startsWith(NAME_PREFIX) && isSandboxName(value.slice(NAME_PREFIX.length)) ? value : null;
  },
};

const OBJECT = uuid("id of the object");
/** Parameters by name; a name has the same meaning in all paths. */
const PARAMETERS: Readonly<Record<string, PathParameter>> = {
  id: uuid("id of the operation"),
  sandbox,
  sha256,
  spid: integer("number of the process in its instance", 0, 999_999_999),
  port: integer("TCP port in the guest", 1, 65_535),
};

/** The parameter of a name; a name without an entry is the UUID of an object. */
export function pathParameter(name: string): PathParameter {
  return PARAMETERS[name] ?? OBJECT;
}

/** Validates the parameters of a path, and changes them to their canonical spelling. @throws ApiError `validation_error` */
export function readParameters(params: Record<string, string>): void {
  for (const name in params) {
    const { normalise, rule } = pathParameter(name);
    const value = normalise(params[name] ?? "");
    if (value === null) throw new ApiError("validation_error", `${name} ${rule}`, { field: name });
    params[name] = value;
  }
}
