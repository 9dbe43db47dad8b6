import { ApiError } from "../domain/errors.ts";
import { UUID_PATTERN } from "../domain/ids.ts";

/** A parameter of a path. */
export interface PathParameter {
  readonly description: string;
  /** for the API description */
  readonly schema: { readonly [keyword: string]: string | number };
  /** what the message says of a value that is none */
  readonly rule: string;
  /** The value in its usual spelling; null for one that is none. */
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

const OBJECT = uuid("id of the object");
/** Every parameter has one meaning, wherever it stands. */
const PARAMETERS: Readonly<Record<string, PathParameter>> = {
  id: uuid("id of the operation"),
  spid: integer("number of the process in its instance", 0, 999_999_999),
  port: integer("TCP port in the guest", 1, 65_535),
};

/** A parameter that no other entry names is the UUID of an object. */
export function pathParameter(name: string): PathParameter {
  return PARAMETERS[name] ?? OBJECT;
}

/** Brings the parameters of a path into their usual spelling, in place. @throws ApiError `validation_error` */
export function readParameters(params: Record<string, string>): void {
  for (const name in params) {
    const { normalise, rule } = pathParameter(name);
    const value = normalise(params[name] ?? "");
    if (value === null) throw new ApiError("validation_error", `${name} ${rule}`, { field: name });
    params[name] = value;
  }
}
