/** The fields that have a value; the types of the routes know no field that is there and undefined. */
export function given<Fields extends object>(
  fields: Fields,
): { [Name in keyof Fields]?: Exclude<Fields[Name], undefined> } {
  const entries = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [Name in keyof Fields]?: Exclude<Fields[Name], undefined> };
}
