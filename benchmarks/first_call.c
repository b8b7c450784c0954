/* Time the first runs of a model file in a C program: first_call MODEL.vkq CACHE RESULTS.
 * `vkq export` wrote MODEL.vkq; CACHE is the path of the pipeline cache. The program prints the seconds for
 * opening the device, loading the file, and each of two runs on zeros. It writes the outputs to RESULTS. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <vkq.h>

static double now(void) {
  struct timespec t;
  timespec_get(&t, TIME_UTC);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **words) {
  double times[5];
  vkq_device *device = NULL;
  vkq_model *model = NULL;
  vkq_array one;
  const void *inputs[16];
  void *outputs[16];
  FILE *file;
  if (count != 4) return 2;
  times[0] = now();
  if (vkq_open(NULL, &device)) return puts(vkq_error()), 1;
  times[1] = now();
  if (vkq_load(device, words[1], words[2], &model)) return puts(vkq_error()), 1;
  times[2] = now();
  if (vkq_inputs(model) > 16 || vkq_outputs(model) > 16) return 1;
  for (uint32_t i = 0; i < vkq_inputs(model); i++)
    if (vkq_input(model, i, &one) || !(inputs[i] = calloc(one.bytes, 1))) return 1;
  for (uint32_t i = 0; i < vkq_outputs(model); i++)
    if (vkq_output(model, i, &one) || !(outputs[i] = malloc(one.bytes))) return 1;
  for (int i = 3; i < 5; i++) {
    if (vkq_run(model, inputs, outputs)) return puts(vkq_error()), 1;
    times[i] = now();
  }
  for (int i = 0; i < 4; i++) printf("%.6f ", times[i + 1] - times[i]);
  if (!(file = fopen(words[3], "wb"))) return 1;
  for (uint32_t i = 0; i < vkq_outputs(model); i++)
    if (vkq_output(model, i, &one) || fwrite(outputs[i], 1, one.bytes, file) != one.bytes) return 1;
  if (fclose(file)) return 1;
  vkq_unload(model);
  vkq_close(device);
  return 0;
}
