/** `Fields` without null and undefined: fields that may be either become optional. */
export type Given<Fields extends object> = {
  [Name in keyof Fields as Fields[Name] extends NonNullable<Fields[Name]> ? Name : never]: Fields[Name];
} & {
  [Name in keyof Fields as Fields[Name] extends NonNullable<Fields[Name]> ? never : Name]?: NonNullable<Fields[Name]>;
};

/** The fields that have a value: bodies and options leave a field out where it has none. */
export function given<Fields extends object>(fields: Fields): Given<Fields> {
  const values: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined && value !== null) values[name] = value;
  }
  return values as Given<Fields>;
}
