import { ApiError, storageFull } from "../../domain/errors.ts";
import { allows, type Scope } from "../../domain/scope.ts";
import type { Principal } from "../../service/parts.ts";
import { type Answer, text } from "./answer.ts";
import { cutLine, shownName } from "./text.ts";

const PATH_CHARACTERS_MAX = 300;

/** @throws ApiError `forbidden` with the command by which the operator can allow it */
export function requireScope({ grants, accountId }: Principal, scope: Scope): void {
  if (allows(grants, scope)) return;
  const message =
    `the token does not allow ${scope}; the operator of the service can make one that does: ` +
    `coppice token create --account ${accountId} --scope ${scope}`;
  throw new ApiError("forbidden", message, { scope });
}

/** An error as the answer of a tool: what is wrong, and what to do next. Null for an internal error. */
export function problem(error: unknown): Answer | null {
  const apiError = error instanceof ApiError ? error : storageFull(error);
  if (apiError === null) return null;
  const { message, details } = apiError;
  const path = typeof details["path"] === "string" && !message.includes(details["path"]) ? details["path"] : null;
  const said = path === null ? message : `${message}: ${shownName(cutLine(path, PATH_CHARACTERS_MAX))}`;
  const next = nextStep(apiError);
  return { isError: true, content: [text(next === "" ? said : `${said}. ${next}`)] };
}

function nextStep({ code, message, details }: ApiError): string {
  switch (code) {
    case "not_found":
      return notFoundStep(message, details);
    case "conflict":
      if (details["state"] !== undefined) return "sandbox_list shows its state.";
      return details["status"] === undefined ? "" : "follow and list_operations show its state.";
    case "not_resumable":
      return "sandbox_rollback to HEAD gives up its processes; its files stay.";
    case "invalid_path":
      return "list_files lists a directory, read_file reads a file.";
    case "too_many_requests":
    case "unavailable":
      return "Wait some seconds, then try again.";
    case "insufficient_storage":
      return "delete_image frees the space of unneeded images.";
    default:
      return "";
  }
}

function notFoundStep(message: string, details: ApiError["details"]): string {
  if (details["tag"] !== undefined) {
    return `The name was ${JSON.stringify(cutLine(String(details["tag"]), PATH_CHARACTERS_MAX))}. ${IMAGES_STEP}`;
  }
  if (message.includes("sandbox")) return "sandbox_list shows those that there are.";
  if (message.includes("image")) return IMAGES_STEP;
  if (message.includes("operation") || message.includes("instance"))
    return "list_operations shows those that there are.";
  if (message.includes("no such file") && details["field"] !== undefined) return "upload_file makes one.";
  return "list_files shows what a directory has; search finds files by name.";
}

const IMAGES_STEP = "list_images shows those that there are; import_image imports one.";
