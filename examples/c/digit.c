/* Recognizes a handwritten digit: digit MODEL.vkq < NUMBERS
 * NUMBERS has 64 integers from 0 to 16: the pixels of an 8 x 8 picture, row by row.
 *
 *   vkq export examples/models/digits.onnx -o digits.vkq
 *   cc examples/c/digit.c -I vkq/player/native -L FOLDER_OF_LIBVKQ -lvkq -o digit
 */
#include <stdio.h>
#include <vkq.h>

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, vkq_error());
  return 1;
}

int main(int count, char **words) {
  float pixels[64], scores[10];
  vkq_device *device = NULL;
  vkq_model *model = NULL;
  vkq_array x, y;
  int best = 0, status = 0;
  if (count < 2) {
    fprintf(stderr, "usage: digit MODEL.vkq\n");
    return 2;
  }
  if (vkq_open(NULL, &device)) return failed("vkq_open");
  if (vkq_load(device, words[1], NULL, &model)) status = failed("vkq_load");
  if (!status) printf("%s\n%s\n", vkq_device_name(device), vkq_describe(model));
  if (!status && (vkq_input(model, 0, &x) || vkq_output(model, 0, &y))) status = failed("vkq_input");
  if (!status && (x.bytes != sizeof pixels || y.bytes != sizeof scores)) {
    fprintf(stderr, "this is no model of digits: %s has %llu bytes\n", x.name, (unsigned long long)x.bytes);
    status = 1;
  }
  for (int i = 0; !status && i < 64; i++) {
    int pixel;
    if (scanf("%d", &pixel) != 1) status = 2;
    pixels[i] = (float)pixel / 16;
  }
  if (!status) {
    const void *inputs[] = {pixels};
    void *outputs[] = {scores};
    if (vkq_run(model, inputs, outputs)) status = failed("vkq_run");
  }
  for (int i = 1; !status && i < 10; i++)
    if (scores[i] > scores[best]) best = i;
  if (!status) printf("digit %d\n", best);
  vkq_unload(model);
  vkq_close(device);
  return status;
}
