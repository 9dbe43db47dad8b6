import { useEffect } from "preact/hooks";
import { openSandbox } from "../../client/sandboxes.ts";
import { isFocusFree } from "../browser/focus.ts";
import { navigate, useRoute } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { useSession } from "../data/session.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { Button } from "../parts/button.tsx";
import { Checkbox, Select } from "../parts/field.tsx";
import { type FormFieldsProps, ResourceFields, TextField } from "../parts/form/text-field.tsx";
import { useForm } from "../parts/form/use-form.ts";
import { ProblemNote } from "../parts/problem-note.tsx";
import { ImageField } from "../run/form/image-field.tsx";
import { TIMEOUT_CHOICES } from "./actions/life-question.tsx";
import { EMPTY_FORM, FORM_FIELDS, requestOf, type SandboxForm } from "./model/form.ts";

/** The form of a sandbox: empty, or on an image (`?image=`). */
export function FormView() {
  const { parameters } = useRoute();
  const image = parameters.get("image") ?? "";
  return (
    <div class="run-form stack gap-4 shrink">
      <PageHeader
        heading="Open a sandbox"
        crumbs={[{ label: "Sandboxes", href: "/sandboxes" }, { label: "Open a sandbox" }]}
      />
      <Form key={image} initial={{ ...EMPTY_FORM, image }} />
    </div>
  );
}

function Form({ initial }: { readonly initial: SandboxForm }) {
  const { form, set, problems, problem, isBusy, place, submit } = useForm({
    initial,
    requestOf,
    fields: FORM_FIELDS,
    send: async (request) => navigate(`/sandboxes/${(await openSandbox(api, request, 0)).uuid}`),
  });
  const { may } = useSession();
  useEffect(() => {
    if (isFocusFree()) place.current?.querySelectorAll("input")[initial.image === "" ? 0 : 1]?.focus();
  }, []);
  return (
    <form
      ref={place}
      class="run-form-fields stack gap-4"
      aria-label="Open a sandbox"
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      <FormFields form={form} set={set} problems={problems} />
      {problem === undefined ? null : <ProblemNote problem={problem} title="The sandbox was not opened" />}
      <div class="row wrap gap-2-3">
        <Button tone="primary" type="submit" icon="sandbox" isBusy={isBusy} disabled={!may("instances:spawn")}>
          Open
        </Button>
        {may("instances:spawn") ? null : (
          <span class="muted">The token of this session lacks the scope instances:spawn.</span>
        )}
      </div>
    </form>
  );
}

type FieldsProps = FormFieldsProps<SandboxForm>;

function FormFields(props: FieldsProps) {
  const { form, set, problems } = props;
  const mayUseNetwork = useSession().may("instances:network");
  return (
    <>
      <ImageField value={form.image} onValue={(image) => set({ image })} problem={problems["image"]} />
      <TextField
        {...props}
        name="name"
        field="name"
        label="Name"
        placeholder="dev"
        hint="Lower-case letters, digits and hyphens. Without one, the appliance makes a name."
      />
      <div class="run-form-grid gap-3">
        <TextField {...props} name="timeout" field="timeout" label="Time" placeholder="1h" />
        <Select
          label="Then"
          value={form.onTimeout}
          choices={TIMEOUT_CHOICES}
          onValue={(onTimeout) => set({ onTimeout })}
        />
        <TextField {...props} name="idle" field="idle_timeout" label="Pause when idle for" placeholder="never" />
      </div>
      <Checkbox
        label="Resume it for a request"
        hint="A request for a paused sandbox, such as a shell or a written file, starts its machine again."
        isChecked={form.autoResume}
        onChecked={(autoResume) => set({ autoResume })}
      />
      <div class="run-form-grid gap-3">
        <ResourceFields {...props} />
      </div>
      <TextField
        {...props}
        name="rules"
        field="network"
        label="Network"
        rows={3}
        placeholder={"*.example.org:443\n10.0.7.5:5432"}
        hint={
          mayUseNetwork
            ? "Hosts that it may connect to, one per line. Empty: none."
            : "The token of this session lacks the scope instances:network."
        }
        isDisabled={!mayUseNetwork}
      />
    </>
  );
}
