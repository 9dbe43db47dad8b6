import { Field } from "../field.tsx";
import type { FieldProblems } from "./values.ts";

export interface FormFieldsProps<Form> {
  readonly form: Form;
  readonly set: (values: Partial<Form>) => void;
  readonly problems: FieldProblems;
}

type TextName<Form> = { [Key in keyof Form]: Form[Key] extends string ? Key : never }[keyof Form];

interface TextFieldProps<Form> extends FormFieldsProps<Form> {
  readonly name: TextName<Form>;
  /** of the API */
  readonly field: string;
  readonly label: string;
  readonly placeholder?: string;
  readonly hint?: string;
  readonly rows?: number;
  readonly isDisabled?: boolean;
}

/** A field for a text of a form. */
export function TextField<Form>({ form, set, problems, name, field, ...more }: TextFieldProps<Form>) {
  return (
    <Field
      {...more}
      isMono
      value={form[name] as string}
      onValue={(value) => set({ [name]: value } as Partial<Form>)}
      problem={problems[field]}
    />
  );
}

/** The fields for the resources of a machine. */
export function ResourceFields<Form extends Record<"vcpus" | "memory" | "disk", string>>(props: FormFieldsProps<Form>) {
  return (
    <>
      <TextField {...props} name={"vcpus" as TextName<Form>} label="CPUs" placeholder="1" field="resources.vcpus" />
      <TextField
        {...props}
        name={"memory" as TextName<Form>}
        label="Memory"
        placeholder="512M"
        field="resources.memory_bytes"
      />
      <TextField
        {...props}
        name={"disk" as TextName<Form>}
        label="Disk"
        placeholder="10G"
        field="resources.disk_bytes"
      />
    </>
  );
}
