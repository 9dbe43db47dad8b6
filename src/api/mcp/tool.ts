import { type Static, type TObject, type TProperties, type TSchema, Type } from "@sinclair/typebox";
import { TypeCompiler } from "@sinclair/typebox/compiler";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId, OperationId } from "../../domain/ids.ts";
import { parseUuid } from "../../domain/ids.ts";
import type { Scope } from "../../domain/scope.ts";
import type { Principal } from "../../service/parts.ts";
import type { Service } from "../../service/service.ts";
import { validationError } from "../schema.ts";
import type { Answer } from "./answer.ts";

/** The context of a tool's call. */
export interface ToolCall {
  readonly service: Service;
  readonly principal: Principal;
  /** fires when the client no longer waits */
  readonly signal: AbortSignal;
  /** Reports progress to the client; null when it did not request that. */
  readonly progress: ((message: string) => void) | null;
}

/** Hints for the client about what a tool does. */
export interface Annotations {
  readonly readOnlyHint?: boolean;
  readonly destructiveHint?: boolean;
  readonly idempotentHint?: boolean;
  readonly openWorldHint?: boolean;
}

export const READS: Annotations = { readOnlyHint: true, openWorldHint: false };
export const ADDS: Annotations = { destructiveHint: false, openWorldHint: false };
export const DESTROYS: Annotations = { destructiveHint: true, openWorldHint: false };

interface ToolSpec<Schema extends TObject> {
  readonly name: string;
  /** for a model that has never seen the service */
  readonly description: string;
  readonly input: Schema;
  readonly annotations: Annotations;
  /** that every call needs */
  readonly scope: Scope;
  /**
   * An async function holds its parameters until it returns, so a tool with large input that may wait long must not be one.
   * @throws ApiError, which `problem` turns into an answer
   */
  run(input: Static<Schema>, call: ToolCall): Promise<Answer>;
}

export interface Tool extends Pick<ToolSpec<TObject>, "name" | "description" | "annotations" | "scope"> {
  readonly inputSchema: TObject;
  /** @throws ApiError `validation_error` when the input does not fit the schema; as the tool itself */
  call(input: unknown, call: ToolCall): Promise<Answer>;
}

/** Makes a tool from its description. Its input is checked strictly and not stored; the first call compiles the check. */
export function tool<const Schema extends TObject>({ input, run, ...spec }: ToolSpec<Schema>): Tool {
  let checked: ReturnType<typeof TypeCompiler.Compile<Schema>> | null = null;
  return {
    ...spec,
    inputSchema: input,
    call(value, call) {
      checked ??= TypeCompiler.Compile(input);
      const error = checked.Check(value) ? undefined : checked.Errors(value).First();
      if (error !== undefined) throw inputError(error, input);
      return run(value as Static<Schema>, call);
    },
  };
}

function inputError(failure: Parameters<typeof validationError>[0], { properties }: TObject): ApiError {
  const unknownName = /^\/([^/]+)$/.exec(failure.path)?.[1];
  if (unknownName !== undefined && !(unknownName in properties)) {
    const names = Object.keys(properties).join(", ");
    return new ApiError("validation_error", `there is no parameter ${unknownName.slice(0, 100)}; there are ${names}`);
  }
  const error = validationError(failure);
  return new ApiError("validation_error", error.message.replace(/^the body /, "the arguments "), error.details);
}

/** The input of a tool. Other properties are refused: a misspelt one would be ignored silently. */
export function inputs<const Properties extends TProperties>(properties: Properties): TObject<Properties> {
  return Type.Object(properties, { additionalProperties: false });
}

export function optional<const Schema extends TSchema>(schema: Schema) {
  return Type.Optional(schema);
}

export function integer(minimum: number, maximum: number, more: { default?: number; description?: string } = {}) {
  return Type.Integer({ minimum, maximum, ...more });
}

export const IMAGE = Type.String({ maxLength: 300, description: "uuid or tag" });
export const OPERATION = Type.String({ maxLength: 36, description: "id" });

/** The id of the image that a caller names by uuid, tag or `tag:<name>`. @throws ApiError `validation_error`, `not_found` */
export function imageId({ service, principal }: ToolCall, name: string): ImageId {
  const id = parseUuid<ImageId>(name);
  if (id !== null) return service.inspect.image(principal, id).id;
  return service.inspect.byTag(principal, name.replace(/^tag:/, "")).id;
}

/** @throws ApiError `validation_error` */
export function operationId(name: string): OperationId {
  const id = parseUuid<OperationId>(name);
  if (id === null)
    throw new ApiError("validation_error", "operation must be the id of an operation", { field: "operation" });
  return id;
}
