declare const brand: unique symbol;
type Id<Name extends string> = string & { readonly [brand]: Name };

export type AccountId = Id<"AccountId">;
export type ImageId = Id<"ImageId">;
export type FileId = Id<"FileId">;
export type LayerId = Id<"LayerId">;
/** The id of an operation, which is also the uuid of an instance. */
export type OperationId = Id<"OperationId">;
export type SandboxId = Id<"SandboxId">;
export type MemoryImageId = Id<"MemoryImageId">;
/** Whose event log it is. */
export type LogId = OperationId | SandboxId;

/** Canonical textual form of a UUID. Upper case is accepted, and converted to lower case before comparisons. */
export const UUID_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
const uuidExpression = new RegExp(UUID_PATTERN);

/** `value` in lower case if it is a UUID, otherwise null. */
export function parseUuid<T extends Id<string>>(value: string): T | null {
  return uuidExpression.test(value) ? (value.toLowerCase() as T) : null;
}

const digitsExpression = /^([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/i;

/** As `parseUuid`; the clients of E2B write the same ids without dashes. */
export function parseUuidOrDigits<T extends Id<string>>(value: string): T | null {
  return parseUuid(value.replace(digitsExpression, "$1-$2-$3-$4-$5"));
}

/** The name of an account is the `sub` of its tokens: short, printable and safe in a log field. */
export const ACCOUNT_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$";

/** Wire form of a time in `milliseconds` since the epoch. */
export function isoTime(ms: number): string {
  return new Date(ms).toISOString();
}
