import { ApiError } from "./errors.ts";
import { type ImageId, parseUuid } from "./ids.ts";

/** 1 to 128 characters, the first a letter or digit. */
export const TAG_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$";
const tagExpression = new RegExp(TAG_PATTERN);
/** The rule for tags, as the rest of a message that begins with the tag's name. */
export const TAG_RULE = "must be 1 to 128 characters of A-Z a-z 0-9 . _ : / - and begin with a letter or digit";
/** Longest tag of all, in `characters`: an image may have got one from a surface with another rule than TAG_PATTERN. */
const TAG_CHARACTERS_MAX = 256;
const storedTagExpression = /^[A-Za-z0-9][A-Za-z0-9._:/-]*$/;
const STORED_TAG_RULE = `must be 1 to ${TAG_CHARACTERS_MAX} characters of A-Z a-z 0-9 . _ : / - and begin with a letter or digit`;
/** Largest number of tags of an image. */
export const TAGS_COUNT_MAX = 1000;

/** Bounds of the import time-out, in `seconds`. */
export const IMPORT_TIMEOUT_SECONDS_DEFAULT = 300;
export const IMPORT_TIMEOUT_SECONDS_MAX = 3600;

/** Kinds of difference between two images at a path. */
export const DIFF_CHANGES = ["added", "changed", "removed"] as const;
export type DiffChange = (typeof DIFF_CHANGES)[number];

export type ImageReference = { readonly uuid: ImageId } | { readonly tag: string };

export function isTag(value: string): boolean {
  return tagExpression.test(value);
}

/** True for every tag that an image can have, those included that TAG_PATTERN does not allow to be set. */
export function isStoredTag(value: string): boolean {
  return value.length <= TAG_CHARACTERS_MAX && storedTagExpression.test(value);
}

/**
 * Parses `<uuid>` or `tag:<name>`, where the name may be any that an image can have.
 * @throws ApiError `validation_error`
 */
export function parseImageReference(value: string): ImageReference {
  if (value.startsWith("tag:")) {
    const tag = value.slice("tag:".length);
    if (!isStoredTag(tag)) throw new ApiError("validation_error", `image: tag ${STORED_TAG_RULE}`, { field: "image" });
    return { tag };
  }
  const uuid = parseUuid<ImageId>(value);
  if (uuid === null) {
    throw new ApiError("validation_error", "image must be an image UUID or tag:<name>", { field: "image" });
  }
  return { uuid };
}

/**
 * Checks a tag that no image has. A longer one than TAG_PATTERN allows is a tag only while an image has it.
 * @throws ApiError `validation_error`
 */
export function checkAbsentTag(tag: string): void {
  if (!isTag(tag)) throw new ApiError("validation_error", `image: tag ${TAG_RULE}`, { field: "image" });
}
