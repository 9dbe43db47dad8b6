import { bytesOfSize, DURATION_FORM, SIZE_FORM, secondsOfDuration } from "../../../domain/text/quantities.ts";

/** Mistakes, by the field of the API. */
export type FieldProblems = Readonly<Record<string, string>>;

/** Either the request of a form, or the fields that cannot be part of one. */
export type FormResult<Request> = { readonly request: Request } | { readonly problems: FieldProblems };

/** The field of a form for a field of the API. */
export function fieldOf(field: unknown): string {
  if (typeof field !== "string") return "";
  if (field.startsWith("resources.")) return field;
  const [first = ""] = field.split(/[./[]/);
  return first === "args" ? "command" : first;
}

/** Reads numbers that were typed. An empty text is undefined, and a mistake is kept under the field's name. */
export class TypedValues {
  readonly problems: Record<string, string> = {};

  whole(field: string, text: string): number | undefined {
    return this.#read(field, text, wholeNumber, "a number");
  }

  /** In `bytes`. */
  size(field: string, text: string): number | undefined {
    return this.#read(field, text, bytesOfSize, SIZE_FORM);
  }

  /** In `seconds`. */
  duration(field: string, text: string): number | undefined {
    return this.#read(field, text, secondsOfDuration, DURATION_FORM);
  }

  /** The resources of a machine; undefined when all are left out. */
  resources({ vcpus, memory, disk }: ResourceTexts) {
    const values = defined({
      vcpus: this.whole("resources.vcpus", vcpus),
      memory_bytes: this.size("resources.memory_bytes", memory),
      disk_bytes: this.size("resources.disk_bytes", disk),
    });
    return Object.keys(values).length > 0 ? values : undefined;
  }

  /** The request, unless a field has a mistake. */
  result<Request>(request: Request): FormResult<Request> {
    return Object.keys(this.problems).length === 0 ? { request } : { problems: this.problems };
  }

  #read(field: string, text: string, read: (text: string) => number | null, rule: string): number | undefined {
    if (text.trim() === "") return undefined;
    const value = read(text);
    if (value === null) this.problems[field] = `${field} must be ${rule}`;
    return value ?? undefined;
  }
}

export interface ResourceTexts {
  readonly vcpus: string;
  readonly memory: string;
  readonly disk: string;
}

/** The fields of an object that have a value. */
export function defined<T extends object>(values: T): Partial<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Partial<T>;
}

/** A text without the space around it; undefined when nothing is left. */
export function typedText(value: string): string | undefined {
  const text = value.trim();
  return text === "" ? undefined : text;
}

function wholeNumber(text: string): number | null {
  return /^\d{1,15}$/.test(text.trim()) ? Number(text) : null;
}
