import { ApiError } from "../errors.ts";
import { isTag } from "../image.ts";

/** The tag of a template that a name without one means. */
export const TAG_DEFAULT = "default";
/** The tags that a name without one means, the first that there is. */
export const DEFAULT_TAGS = [TAG_DEFAULT, "latest"] as const;
/** Largest number of tags that one request names. */
export const TEMPLATE_TAGS_COUNT_MAX = 64;

const nameExpression = /^[a-z0-9][a-z0-9_-]*$/;
const tagExpression = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
const idExpression = /^[a-z0-9]{20}$/;
const ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH = 20;

/** The name of a template, and a tag if it has one. */
export interface TemplateName {
  readonly name: string;
  readonly tag: string | null;
}

/** `name` or `name:tag`, with the account in front of them or not; null for other texts, and for another account. */
export function parseTemplateName(text: string, account: string): TemplateName | null {
  const own = text.startsWith(`${account}/`) ? text.slice(account.length + 1) : text;
  const [first = "", tag = null, ...rest] = own.split(":");
  const name = first.toLowerCase();
  if (rest.length > 0 || !nameExpression.test(name) || (tag !== null && !tagExpression.test(tag))) return null;
  return isTag(imageTag(name, tag ?? TAG_DEFAULT)) ? { name, tag } : null;
}

/** @throws ApiError `validation_error` */
export function requireTemplateName(text: string, account: string): TemplateName {
  const parsed = parseTemplateName(text, account);
  if (parsed !== null) return parsed;
  const rule = "must be NAME or NAME:TAG, where NAME has only a-z 0-9 _ - and TAG only A-Z a-z 0-9 . _ -";
  throw new ApiError("validation_error", `template name '${text.slice(0, 200)}' ${rule}`, { field: "name" });
}

/** A tag of a template; `name:tag` stands for `tag`. @throws ApiError `validation_error` */
export function requireTemplateTag(text: string, name: string): string {
  const tag = text.startsWith(`${name}:`) ? text.slice(name.length + 1) : text;
  if (tagExpression.test(tag) && isTag(imageTag(name, tag))) return tag;
  throw new ApiError("validation_error", `tag '${text.slice(0, 200)}' must have only A-Z a-z 0-9 . _ -`, {
    field: "tags",
  });
}

/** The tag of the image that a tag of a template names. */
export function imageTag(name: string, tag: string): string {
  return `${name}:${tag}`;
}

/** The name of the template that a tag of an image stands for: the tag, without the part that a name alone means. */
export function nameOfImageTag(tag: string): string {
  const end = DEFAULT_TAGS.map((each) => `:${each}`).find((each) => tag.endsWith(each)) ?? "";
  return tag.slice(0, tag.length - end.length);
}

export function isTemplateId(text: string): boolean {
  return idExpression.test(text);
}

export function newTemplateId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(ID_LENGTH));
  return Array.from(bytes, (byte) => ID_ALPHABET[byte % ID_ALPHABET.length]).join("");
}
