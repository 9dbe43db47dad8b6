import { type Static, Type } from "@sinclair/typebox";
import { ApiError } from "../../domain/errors.ts";

export const Message = Type.Object(
  {
    jsonrpc: Type.Literal("2.0", { error: "must be 2.0" }),
    method: Type.Optional(Type.String({ description: "absent in an answer" })),
    id: Type.Optional(Type.Unknown({ description: "absent in a notification; a string has at most 256 characters" })),
    params: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  },
  { description: "a message of JSON-RPC 2.0; the protocol has no batches", error: "must be one JSON-RPC message" },
);
export type Message = Static<typeof Message>;

/** Longest id of a request, and longest token of its progress, in `characters`: the answers repeat them. */
const NAME_CHARACTERS_MAX = 256;

/** The part of a value that is passed on: a string, number or boolean, or these fields of an object. */
type Shape = "plain" | { readonly [name: string]: Shape };

const IMPLEMENTATION: Shape = { name: "plain", version: "plain" };

/** Fields of all requests; in the versions from 2026 on, they have what a handshake had. */
const META: Shape = {
  progressToken: "plain",
  "io.modelcontextprotocol/protocolVersion": "plain",
  "io.modelcontextprotocol/clientInfo": IMPLEMENTATION,
  // This service sends no requests to its clients.
  "io.modelcontextprotocol/clientCapabilities": {},
  "io.modelcontextprotocol/logLevel": "plain",
};

/** The parameters of each method, except the input of tools, which `passedOn` returns separately. */
const PARAMETERS: Readonly<Record<string, { readonly [name: string]: Shape }>> = {
  initialize: { protocolVersion: "plain", capabilities: {}, clientInfo: IMPLEMENTATION },
  "tools/list": { cursor: "plain" },
  "tools/call": { name: "plain" },
  "resources/list": { cursor: "plain" },
  "resources/templates/list": { cursor: "plain" },
  "resources/read": { uri: "plain" },
  "subscriptions/listen": {
    notifications: { toolsListChanged: "plain", promptsListChanged: "plain", resourcesListChanged: "plain" },
  },
  "notifications/cancelled": { requestId: "plain" },
};

/** A request or notification, in two parts. */
export interface PassedOn {
  /** for the library, which stores it until the answer is complete */
  readonly message: Message & { readonly method: string };
  /** Returns and releases the input of a tool. */
  readonly takeInput: () => unknown;
}

/**
 * Reduces a message to the fields of its method. The library copies, checks and stores all that it gets, which costs many
 * times the memory and time of the message.
 * @throws ApiError `validation_error` for a name that is too long
 */
export function passedOn({ jsonrpc, method = "", id, params }: Message): PassedOn {
  requireShort("id", id);
  const shape = { ...(Object.hasOwn(PARAMETERS, method) ? PARAMETERS[method] : {}), _meta: META };
  const passed = params === undefined ? undefined : (picked(params, shape) as Record<string, unknown>);
  requireShort(
    "params._meta.progressToken",
    (passed?.["_meta"] as Record<string, unknown> | undefined)?.["progressToken"],
  );
  let input = method === "tools/call" ? params?.["arguments"] : undefined;
  const takeInput = () => {
    const value = input;
    input = undefined;
    return value ?? {};
  };
  const message = {
    jsonrpc,
    method,
    ...(id === undefined ? {} : { id: picked(id, "plain") }),
    ...(passed === undefined ? {} : { params: passed }),
  };
  return { message, takeInput };
}

/** A value of a wrong type keeps that type, so that the library refuses it. */
function picked(value: unknown, shape: Shape): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (shape === "plain") return Array.isArray(value) ? [] : {};
  if (Array.isArray(value)) return [];
  const fields = Object.entries(shape).filter(([name]) => Object.hasOwn(value, name));
  return Object.fromEntries(
    fields.map(([name, inner]) => [name, picked((value as Record<string, unknown>)[name], inner)]),
  );
}

function requireShort(field: string, value: unknown): void {
  if (typeof value !== "string" || value.length <= NAME_CHARACTERS_MAX) return;
  throw new ApiError("validation_error", `${field} must have at most ${NAME_CHARACTERS_MAX} characters`, { field });
}
