/** A token as some clients want it: they refuse, before any request, a key without this prefix or with other characters. */
const keyExpression = /^e2b_((?:[0-9a-f]{2})+)$/;
/** Longest key that is decoded, in `characters`. */
const KEY_LENGTH_MAX = 8192;

/** The spelling of a token as a key: the prefix, and its bytes in hexadecimal. */
export function keyOfToken(token: string): string {
  return `e2b_${Buffer.from(token).toString("hex")}`;
}

/** The token that a key stands for, in either spelling. It may be invalid. */
export function tokenOfKey(key: string): string {
  const hex = key.length > KEY_LENGTH_MAX ? undefined : keyExpression.exec(key)?.[1];
  return hex === undefined ? key : Buffer.from(hex, "hex").toString("utf8");
}
