const PLAIN = /^[\w@%+=:,./-]+$/;

/** A text as one word of a POSIX shell: as it is, or in single quotes. */
export function shellWord(text: string): string {
  return PLAIN.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
